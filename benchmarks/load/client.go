package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// client is one connection; what it saw is its own, and is read once it has ended.
type client struct {
	connection net.Conn
	reader     *bufio.Reader
	request    []byte
	latencies  []time.Duration // of the requests that ended within the window
	events     int             // of streams, that arrived within the window
	failure    string
}

func newClientOn(connection net.Conn, request []byte) *client {
	return &client{connection: connection, reader: bufio.NewReaderSize(connection, 16<<10), request: request}
}

// loop asks until the window is over. A client whose request failed stops: the harness takes no figures from such a run.
func (c *client) loop() {
	defer c.connection.Close()
	for phase(now.Load()) != over {
		begin := time.Now()
		err := c.ask()
		if phase(now.Load()) == over {
			return
		}
		if err != nil {
			c.failure = err.Error()
			return
		}
		if phase(now.Load()) == measuring {
			c.latencies = append(c.latencies, time.Since(begin))
		}
	}
}

func (c *client) ask() error {
	if _, err := c.connection.Write(c.request); err != nil {
		return err
	}
	length, err := c.readHead()
	if err != nil {
		return err
	}
	if length >= 0 {
		_, err = c.reader.Discard(length)
		return err
	}
	return c.readChunks()
}

// readHead returns the body's length; -1 if it comes in chunks.
func (c *client) readHead() (int, error) {
	status, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200")) {
		return 0, fmt.Errorf("%s", bytes.TrimSpace(status))
	}
	length := -1
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if len(name) == 0 {
			return length, nil
		}
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		}
	}
}

func (c *client) readChunks() error {
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		data, err := c.read(int(size) + len("\r\n"))
		if err != nil || size == 0 {
			return err
		}
		if phase(now.Load()) == measuring {
			c.events += bytes.Count(data, []byte("\n\n"))
		}
	}
}

func (c *client) read(size int) ([]byte, error) {
	data := make([]byte, size)
	_, err := io.ReadFull(c.reader, data)
	return data, err
}
