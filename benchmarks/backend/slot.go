package main

import (
	"fmt"
	"sync"
	"time"
)

// group tells the slots of the two competitors apart.
type group string

const (
	leased group = "leased" // started by an agent
	plain  group = "plain"  // opened by the harness, for HAProxy and for direct requests
)

// slot is one emulated engine: its counters as /slots shows them, and what it did in the current window.
type slot struct {
	group group

	mu         sync.Mutex
	running    int // more than one is what exclusive slots must never show
	tokens     int
	begunAt    time.Time
	endedAt    time.Time
	windowAt   time.Time
	busy       time.Duration
	handoffs   []time.Duration
	users      int
	generation int
	overlaps   int
}

func (s *slot) begin(now time.Time, prompt prompt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
	if s.running > 1 {
		s.overlaps++
	}
	s.generation++
	if !prompt.own {
		s.users++
	}
	if s.endedAt.After(s.windowAt) {
		s.handoffs = append(s.handoffs, now.Sub(s.endedAt))
	}
	s.begunAt = now
}

// end marks the slot idle; it is called before the last byte goes out, as an engine is idle before its client knows.
func (s *slot) end(now time.Time, tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.tokens = tokens
	s.endedAt = now
	s.busy += now.Sub(later(s.begunAt, s.windowAt))
}

// counters shows the slot as basert-serve does, with both counters equal as on a healthy build.
func (s *slot) counters() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf(`[{"id":0,"is_processing":%t,"cache_tokens":%d,"cache_position":%d}]`,
		s.running > 0, s.tokens, s.tokens)
}

func (s *slot) openWindow(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windowAt = now
	s.busy, s.handoffs, s.users, s.generation, s.overlaps = 0, nil, 0, 0, 0
}

// addTo adds what the slot did since the window was opened.
func (s *slot) addTo(total *totals, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	total.slots++
	total.generations += s.generation
	total.users += s.users
	total.overlaps += s.overlaps
	total.handoffs = append(total.handoffs, s.handoffs...)
	total.busy += s.busy
	total.time += now.Sub(s.windowAt)
	if s.running > 0 {
		total.running++
		total.busy += now.Sub(later(s.begunAt, s.windowAt))
	}
}

func later(one, other time.Time) time.Time {
	if one.After(other) {
		return one
	}
	return other
}
