"""How one worker's process is started. Which flags a pool may ask for is decided by the schema (`core.api`)."""

from __future__ import annotations

from basert_fleet.core.api import ModelSpec, ServerSpec

MILLISECONDS = 1000


def command_line(server: ServerSpec, model: ModelSpec, *, host: str, port: int, api_key: str) -> list[str]:
    """Return the argv of a worker's process; the API key is in it, so it is for execution and never for a log."""
    return [
        *server.command,
        model.path,
        *("--host", host),
        *("--port", str(port)),
        *("--api-key", api_key),
        *("--max-context", str(server.max_context)),
        *("--request-timeout", str(server.request_timeout_seconds * MILLISECONDS)),
        *server.args,
    ]
