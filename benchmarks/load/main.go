// Command load is the benchmark's clients: a closed loop of N connections that ask one endpoint again and again.
//
// It writes and reads HTTP itself, because a general client would use more CPU than the gateways under test. On stdout
// it prints `measuring` and `measured` as its window opens and closes, so that the harness can read the CPU used in
// between, and then one line of JSON. With --hold each client asks once and waits; it prints `sent` and lives until
// stdin is closed.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type phase int32

const (
	warming phase = iota
	measuring
	over
)

var now atomic.Int32 // a phase

type options struct {
	addresses []string
	keys      []string
	clients   int
	size      int
	streams   bool
	warm      time.Duration
	measure   time.Duration
	hold      bool
}

func main() {
	asked := parse()
	clients := make([]*client, asked.clients)
	for position := range clients {
		made, err := newClient(asked, position)
		if err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(1)
		}
		clients[position] = made
	}
	if asked.hold {
		hold(clients)
		return
	}
	measure(asked, clients)
}

func parse() options {
	addresses := flag.String("addresses", "", "HOST:PORT, several with commas: client i asks number i modulo their count")
	keys := flag.String("keys", "", "API keys, with commas; client i uses number i modulo their count")
	asked := options{}
	flag.IntVar(&asked.clients, "clients", 1, "connections")
	flag.IntVar(&asked.size, "size", 500, "bytes of a request's body, at least")
	flag.BoolVar(&asked.streams, "stream", false, "ask for streams, and hang up at the end")
	flag.DurationVar(&asked.warm, "warm", time.Second, "before the window")
	flag.DurationVar(&asked.measure, "measure", 5*time.Second, "the window")
	flag.BoolVar(&asked.hold, "hold", false, "ask once and wait")
	flag.Parse()
	asked.addresses = strings.Split(*addresses, ",")
	asked.keys = strings.Split(*keys, ",")
	return asked
}

func measure(asked options, clients []*client) {
	var group sync.WaitGroup
	for _, each := range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			each.loop()
		}()
	}
	time.Sleep(asked.warm)
	now.Store(int32(measuring))
	begin := time.Now()
	fmt.Println("measuring")
	time.Sleep(asked.measure)
	now.Store(int32(over))
	seconds := time.Since(begin).Seconds()
	fmt.Println("measured")
	if asked.streams {
		for _, each := range clients {
			each.connection.Close()
		}
	}
	group.Wait()
	report(clients, seconds)
}

func report(clients []*client, seconds float64) {
	var latencies []time.Duration
	events := 0
	failures := map[string]int{}
	for _, each := range clients {
		latencies = append(latencies, each.latencies...)
		events += each.events
		if each.failure != "" {
			failures[each.failure]++
		}
	}
	slices.Sort(latencies)
	line, err := json.Marshal(map[string]any{
		"seconds":        seconds,
		"requests":       len(latencies),
		"events":         events,
		"failures":       failures,
		"latency_p50_us": quantile(latencies, 0.50),
		"latency_p99_us": quantile(latencies, 0.99),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	fmt.Println(string(line))
}

// quantile returns microseconds; 0 when there is nothing to tell.
func quantile(sorted []time.Duration, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(share*float64(len(sorted)-1))].Nanoseconds()) / 1000
}

func hold(clients []*client) {
	for _, each := range clients {
		if _, err := each.connection.Write(each.request); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			os.Exit(1)
		}
	}
	fmt.Println("sent")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func newClient(asked options, position int) (*client, error) {
	address := asked.addresses[position%len(asked.addresses)]
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	key := asked.keys[position%len(asked.keys)]
	return newClientOn(connection, requestBytes(address, key, asked)), nil
}

func requestBytes(address, key string, asked options) []byte {
	stream := ""
	if asked.streams {
		stream = `,"stream":true`
	}
	const frame = `{"model":"bench","messages":[{"role":"user","content":"%s"}]%s}`
	padding := max(0, asked.size-len(fmt.Sprintf(frame, "", stream)))
	body := fmt.Sprintf(frame, strings.Repeat("word ", padding/5), stream)
	authorization := ""
	if key != "" {
		authorization = "Authorization: Bearer " + key + "\r\n"
	}
	return []byte(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\n%sContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n%s", address, authorization, len(body), body))
}
