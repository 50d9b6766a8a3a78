package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// fleet holds the slots that are open.
type fleet struct {
	mu    sync.Mutex
	slots map[*slot]net.Listener
}

func (f *fleet) open(listener net.Listener, g group) *slot {
	s := &slot{group: g, windowAt: time.Now()}
	f.mu.Lock()
	f.slots[s] = listener
	f.mu.Unlock()
	go serveSlot(listener, s)
	return s
}

func (f *fleet) close(s *slot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots[s].Close()
	delete(f.slots, s)
}

func (f *fleet) each(act func(*slot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.slots {
		act(s)
	}
}

func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	socket := flags.String("socket", "", "where workers hand over their ports")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	current.Store(&workload{Tokens: 64})
	f := &fleet{slots: map[*slot]net.Listener{}}
	workers, err := net.ListenUnix("unix", &net.UnixAddr{Name: *socket, Net: "unix"})
	if err != nil {
		return err
	}
	go f.takeWorkers(workers)
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", control.Addr())
	return http.Serve(control, f.controls())
}

func (f *fleet) takeWorkers(workers *net.UnixListener) {
	for {
		worker, err := workers.AcceptUnix()
		if err != nil {
			fail(err)
		}
		go f.takeWorker(worker)
	}
}

// takeWorker serves one worker's port for as long as that worker lives.
func (f *fleet) takeWorker(worker *net.UnixConn) {
	defer worker.Close()
	listener, err := receiveListener(worker)
	if err != nil {
		fmt.Fprintln(os.Stderr, "backend: a worker's port could not be taken:", err)
		return
	}
	s := f.open(listener, leased)
	_, _ = worker.Read(make([]byte, 1)) // nothing ever comes: it returns when the worker is gone
	f.close(s)
}

func receiveListener(worker *net.UnixConn) (net.Listener, error) {
	rights := make([]byte, syscall.CmsgSpace(4))
	_, size, _, _, err := worker.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("no descriptor came with its message: %v", err)
	}
	descriptors, err := syscall.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(descriptors[0]), "listener")
	defer file.Close()
	return net.FileListener(file)
}

type totals struct {
	slots, running, generations, users, overlaps int
	busy, time                                   time.Duration
	handoffs                                     []time.Duration
}

func (f *fleet) controls() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /open", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.FormValue("count"))
		ports := make([]int, 0, count)
		for range count {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			f.open(listener, plain)
			ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
		}
		respond(w, ports)
	})
	mux.HandleFunc("POST /close", func(w http.ResponseWriter, _ *http.Request) {
		var open []*slot
		f.each(func(s *slot) {
			if s.group == plain {
				open = append(open, s)
			}
		})
		for _, s := range open {
			f.close(s)
		}
		respond(w, len(open))
	})
	mux.HandleFunc("POST /work", func(w http.ResponseWriter, r *http.Request) {
		tokens, _ := strconv.Atoi(r.FormValue("tokens"))
		generation, errGeneration := time.ParseDuration(r.FormValue("generation"))
		interval, errInterval := time.ParseDuration(r.FormValue("interval"))
		if tokens < 1 || errGeneration != nil || errInterval != nil {
			http.Error(w, "tokens, generation and interval are needed", http.StatusBadRequest)
			return
		}
		current.Store(&workload{Generation: generation, Tokens: tokens, Interval: interval})
		respond(w, "ok")
	})
	mux.HandleFunc("POST /window", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		f.each(func(s *slot) { s.openWindow(now) })
		respond(w, "ok")
	})
	mux.HandleFunc("GET /window", func(w http.ResponseWriter, r *http.Request) {
		respond(w, f.report(group(r.FormValue("group"))))
	})
	return mux
}

func (f *fleet) report(g group) map[string]any {
	var total totals
	now := time.Now()
	f.each(func(s *slot) {
		if s.group == g {
			s.addTo(&total, now)
		}
	})
	slices.Sort(total.handoffs)
	busy := 0.0
	if total.time > 0 {
		busy = total.busy.Seconds() / total.time.Seconds()
	}
	return map[string]any{
		"slots":          total.slots,
		"running":        total.running,
		"generations":    total.generations,
		"users":          total.users,
		"overlaps":       total.overlaps,
		"busy":           busy,
		"handoff_p50_us": quantile(total.handoffs, 0.50),
		"handoff_p99_us": quantile(total.handoffs, 0.99),
	}
}

// quantile returns microseconds; 0 when there is nothing to tell.
func quantile(sorted []time.Duration, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(share*float64(len(sorted)-1))].Nanoseconds()) / 1000
}

func respond(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		fmt.Fprintln(os.Stderr, "backend:", err)
	}
}
