"""How a worker's process is started."""

from __future__ import annotations

from basert_fleet.core.api import ModelSpec, ServerSpec
from basert_fleet.engine.command import command_line


def test_command_line_is_the_documented_one():
    """The model comes right after the command, the fleet's flags next, the pool's own last."""
    server = ServerSpec.model_validate(
        {"command": ["basert", "serve"], "args": ["--kv-bits", "8"], "maxContext": 262144, "requestTimeoutSeconds": 600}
    )
    model = ModelSpec.model_validate({"name": "m", "path": "/models/m.base"})
    assert command_line(server, model, host="127.0.0.1", port=8896, api_key="k") == [
        *("basert", "serve", "/models/m.base"),
        *("--host", "127.0.0.1", "--port", "8896", "--api-key", "k"),
        *("--max-context", "262144", "--request-timeout", "600000"),
        *("--kv-bits", "8"),
    ]
