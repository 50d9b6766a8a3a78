"""Refusals of a request, each with the status and the OpenAI error code it is answered with."""

from __future__ import annotations


class Refusal(Exception):
    """A request is answered with an error instead of a result."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param

    def body(self) -> dict[str, object]:
        """Return the error as OpenAI shapes it."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class BadRequest(Refusal):
    """The request cannot be understood; the same request will never be answered."""


class ContextExceeded(Refusal):
    """The prompt alone is longer than `--max-context`."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, max_context: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens, this server's context has {max_context}. Shorten the messages.",
            "messages",
        )


class InvalidApiKey(Refusal):
    """The server has `--api-key` and the request does not carry it as a bearer token."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("Missing or wrong API key. Send it as 'Authorization: Bearer KEY'.")


class NotFound(Refusal):
    """No such path, or the path does not take this method."""

    status = 404
    code = "not_found"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"There is no {method} {path} here.")


class RateLimited(Refusal):
    """More requests arrived within a minute than `--rate-limit` allows."""

    status = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"

    def __init__(self, per_minute: int) -> None:
        super().__init__(f"More than {per_minute} requests in a minute. Wait, or raise --rate-limit.")


class Draining(Refusal):
    """The server got SIGUSR1: it finishes what it has and takes nothing new."""

    status = 503
    code = "draining"
    kind = "server_error"

    def __init__(self) -> None:
        super().__init__("The server is draining. Send the request elsewhere.")


class TimedOut(Refusal):
    """The generation did not end within `--request-timeout`."""

    status = 504
    code = "request_timeout"
    kind = "server_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request took longer than {seconds:g} s (--request-timeout).")
