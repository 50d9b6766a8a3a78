package main

import (
	"flag"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"syscall"
)

// work listens on the port that the agent chose, lends the listening socket to the server, and becomes a `cat`.
//
// The agent proves that its own child listens on the port; this child does, though it never accepts. It costs the
// memory of a cat that reads from the server's socket: when either of the two ends, the other one sees the end.
func work(arguments []string) error {
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	host := flags.String("host", "127.0.0.1", "address to listen on")
	port := flags.Int("port", 0, "port to listen on")
	socket := flags.String("bench-socket", "", "the server's socket")
	for _, name := range []string{"api-key", "max-context", "request-timeout"} {
		flags.String(name, "", "accepted, no effect here")
	}
	if len(arguments) == 0 {
		return fmt.Errorf("no model")
	}
	if err := flags.Parse(arguments[1:]); err != nil { // basert-serve takes the model's path before its flags
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, strconv.Itoa(*port)))
	if err != nil {
		return err
	}
	listening, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	server, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: *socket, Net: "unix"})
	if err != nil {
		return err
	}
	lifeline, err := server.File()
	if err != nil {
		return err
	}
	// Taken once: Fd makes the socket blocking again, which the server shares once it has it.
	descriptor := int(listening.Fd())
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(descriptor), syscall.F_SETFD, 0); errno != 0 {
		return errno
	}
	if _, _, err := server.WriteMsgUnix([]byte{1}, syscall.UnixRights(descriptor), nil); err != nil {
		return err
	}
	if err := syscall.Dup3(int(lifeline.Fd()), 0, 0); err != nil {
		return err
	}
	cat, err := exec.LookPath("cat")
	if err != nil {
		return err
	}
	return syscall.Exec(cat, []string{"cat"}, nil)
}
