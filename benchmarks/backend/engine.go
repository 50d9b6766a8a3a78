package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// work tells how a generation goes; the harness sets it between measurements.
type workload struct {
	Generation time.Duration // of a whole answer
	Tokens     int           // of an answer
	Interval   time.Duration // between the tokens of a stream
}

var current atomic.Pointer[workload]

// serveSlot answers on one slot's port until the listener is closed.
func serveSlot(listener net.Listener, s *slot) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go serveConnection(connection, s)
	}
}

type request struct {
	path string
	body []byte
}

func serveConnection(connection net.Conn, s *slot) {
	defer connection.Close()
	requests := make(chan request)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(requests)
		readRequests(connection, requests, done)
	}()
	for request := range requests {
		var err error
		switch request.path {
		case "/slots":
			_, err = connection.Write(jsonResponse(s.counters()))
		case "/health":
			_, err = connection.Write(jsonResponse(`{"status":"ok"}`))
		default:
			err = generate(connection, s, readPrompt(request.body), requests)
		}
		if err != nil {
			return
		}
	}
}

// readRequests reads on while a generation runs, so that a client that leaves is seen.
func readRequests(connection net.Conn, requests chan<- request, done <-chan struct{}) {
	reader := bufio.NewReaderSize(connection, 16<<10)
	for {
		next, err := readRequest(reader)
		if err != nil {
			return
		}
		select {
		case requests <- next:
		case <-done:
			return
		}
	}
}

func readRequest(reader *bufio.Reader) (request, error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return request{}, err
	}
	parts := bytes.Fields(line)
	if len(parts) != 3 {
		return request{}, io.ErrUnexpectedEOF
	}
	found := request{path: string(parts[1])}
	length := 0
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return request{}, err
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if len(name) == 0 {
			break
		}
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return request{}, err
			}
		}
	}
	found.body = make([]byte, length)
	_, err = io.ReadFull(reader, found.body)
	return found, err
}

// generate runs one generation; it ends early when the client leaves.
func generate(connection net.Conn, s *slot, p prompt, requests <-chan request) error {
	load := current.Load()
	tokens, finish := p.answerTokens(load.Tokens)
	begin := time.Now()
	s.begin(begin, p)
	if !p.stream {
		gone := sleepUntil(begin.Add(load.Generation), requests)
		s.end(time.Now(), p.tokens+tokens)
		if gone {
			return io.EOF
		}
		_, err := connection.Write(p.whole(tokens, finish))
		return err
	}
	made, err := stream(connection, tokens, begin, load.Interval, requests)
	s.end(time.Now(), p.tokens+made)
	if err != nil {
		return err
	}
	_, err = connection.Write(p.streamEnd(tokens, finish))
	return err
}

func stream(connection net.Conn, tokens int, begin time.Time, interval time.Duration, requests <-chan request) (int, error) {
	head := append(append([]byte{}, streamHead...), roleChunk...)
	if _, err := connection.Write(head); err != nil {
		return 0, err
	}
	for made := 0; made < tokens; made++ {
		if sleepUntil(begin.Add(time.Duration(made+1)*interval), requests) {
			return made, io.EOF
		}
		if _, err := connection.Write(textChunk); err != nil {
			return made, err
		}
	}
	return tokens, nil
}

// exact is the last part of a wait that is left to the kernel: the runtime's own timers are late by up to 1 ms.
const exact = 2 * time.Millisecond

// sleepUntil returns whether the client left meanwhile. A second request on the connection counts as that, too.
func sleepUntil(until time.Time, requests <-chan request) bool {
	if wait := time.Until(until) - exact; wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-requests:
			return true
		case <-timer.C:
		}
	}
	if wait := time.Until(until); wait > 0 {
		pause := syscall.NsecToTimespec(int64(wait))
		_ = syscall.Nanosleep(&pause, nil) // cut short by a signal it is a little early, which no figure depends on
	}
	return false
}
