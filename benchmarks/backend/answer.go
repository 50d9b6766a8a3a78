package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

const bytesPerToken = 4 // a usual figure for English text

// prompt is what the backend wants to know of a request. It searches instead of decoding: the fleet and the load
// generator write compact JSON, and the backend's own CPU is not what is measured.
type prompt struct {
	stream       bool
	includeUsage bool
	own          bool   // from the fleet itself: a canary, a scrub or calibration; only they set max_tokens
	key          string // asked for by a canary
	tokens       int
	maxTokens    int
}

func readPrompt(body []byte) prompt {
	found := prompt{
		stream:       bytes.Contains(body, []byte(`"stream":true`)),
		includeUsage: bytes.Contains(body, []byte(`"include_usage":true`)),
		tokens:       len(body) / bytesPerToken,
	}
	if _, after, ok := bytes.Cut(body, []byte(`"max_tokens":`)); ok {
		found.own = true
		found.maxTokens = leadingNumber(after)
	}
	if _, after, ok := bytes.Cut(body, []byte("Call lookup_key with key ")); ok {
		key, _, _ := bytes.Cut(after, []byte("."))
		found.key = string(key)
	}
	return found
}

func leadingNumber(text []byte) int {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	number, _ := strconv.Atoi(string(text[:end]))
	return number
}

// answerTokens returns how many tokens the answer has, and how it ends.
func (p prompt) answerTokens(usual int) (int, string) {
	switch {
	case p.key != "":
		return usual, "tool_calls"
	case p.own && p.maxTokens < usual:
		return p.maxTokens, "length"
	default:
		return usual, "stop"
	}
}

func (p prompt) usage(completion int) string {
	return fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		p.tokens, completion, p.tokens+completion)
}

// whole returns an answer in one piece, as a complete HTTP response.
func (p prompt) whole(completion int, finish string) []byte {
	message := `"content":"` + strings.Repeat(" tok", completion) + `"`
	if p.key != "" {
		message = fmt.Sprintf(`"content":null,"tool_calls":[{"id":"call_1","type":"function",`+
			`"function":{"name":"lookup_key","arguments":"{\"key\":\"%s\"}"}}]`, p.key)
	}
	return jsonResponse(fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench",`+
		`"choices":[{"index":0,"message":{"role":"assistant",%s},"finish_reason":"%s"}],%s}`,
		message, finish, p.usage(completion)))
}

func jsonResponse(body string) []byte {
	return []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

var (
	streamHead = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	roleChunk  = event(choice(`{"role":"assistant","content":""}`, "null"))
	textChunk  = event(choice(`{"content":" tok"}`, "null"))
)

// streamEnd returns everything after the last text.
func (p prompt) streamEnd(completion int, finish string) []byte {
	end := event(choice(`{}`, `"`+finish+`"`))
	if p.includeUsage {
		end = append(end, event(envelope(`"choices":[],`+p.usage(completion)))...)
	}
	end = append(end, event("[DONE]")...)
	return append(end, "0\r\n\r\n"...)
}

func choice(delta, finish string) string {
	return envelope(fmt.Sprintf(`"choices":[{"index":0,"delta":%s,"finish_reason":%s}]`, delta, finish))
}

func envelope(fields string) string {
	return `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench",` + fields + `}`
}

// event returns one server-sent event as one HTTP chunk: engines write each token as it comes.
func event(data string) []byte {
	data = "data: " + data + "\n\n"
	return []byte(strconv.FormatInt(int64(len(data)), 16) + "\r\n" + data + "\r\n")
}
