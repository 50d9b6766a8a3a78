// Command backend is the engine of the benchmark: many single-slot servers in one process.
//
// A thousand real servers would not fit on the machine that measures, and what they cost would hide what the gateways
// cost. So one process serves all slots, each on its own port, and keeps their times by one clock:
//
//	backend serve --socket PATH      serves slots; prints the URL of its control port
//	backend worker MODEL --port N …  what an agent starts as basert-serve: hands its port to the server, then waits
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: backend serve|worker"))
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(os.Args[2:])
	case "worker":
		err = work(os.Args[2:])
	default:
		err = fmt.Errorf("unknown command %q: serve or worker", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "backend:", err)
	os.Exit(1)
}
