"""From the entries of `spec.attach` to the servers that workers are, and what is promised of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from basert_fleet.agent.attached import AttachedServer
from basert_fleet.cli.followed import read_file
from basert_fleet.cli.process import UsageRefused
from basert_fleet.core.errors import FleetError
from basert_fleet.core.plan import worker_name
from basert_fleet.core.server_address import server_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from basert_fleet.cli.listen import Address
    from basert_fleet.core.api import AttachSpec

PROMISES = """\
What holds for a process of the fleet's own does not all hold for these (docs/attach.md):
  - Others may use them too. Counters that they moved between two requests are found before the second is sent; what
    they do during one may not be.
  - They cannot be killed from here. One in doubt is restarted by its restartCommand; {without_command}
  - Whatever listens on such a port is taken for the server."""


class KeyFileRefused(FleetError):
    """An apiKeyFile does not hold a key."""

    code = "key_file_refused"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} should hold an API key and nothing else: printable ASCII without spaces, on one line")
        self.path = path


def attached_servers(entries: Sequence[AttachSpec]) -> dict[str, AttachedServer]:
    """Return the servers by the name of the worker that each is: a pool's are numbered in the order of the file.

    Raises:
        FileUnreadable: an apiKeyFile cannot be read.
        KeyFileRefused: one holds no key.
    """
    numbers: Counter[str] = Counter()
    servers: dict[str, AttachedServer] = {}
    for entry in entries:
        key = "" if entry.api_key_file is None else _read_key(Path(entry.api_key_file))
        servers[worker_name(entry.pool, numbers[entry.pool])] = AttachedServer(
            server_address(entry.url), key, entry.restart_command or ()
        )
        numbers[entry.pool] += 1
    return servers


def refuse_own_ports(servers: Mapping[str, AttachedServer], own: Mapping[str, Address]) -> None:
    """Refuse a server whose port the fleet itself listens on; `own` are its addresses, by the flag that gave them.

    Raises:
        UsageRefused: there is one.
    """
    for worker, server in servers.items():
        for flag, address in own.items():
            if server.address.port == address.port:
                raise UsageRefused(
                    f"{worker} is to be the server at {server.address}, but that is the port of {flag} {address}: the "
                    "fleet would send its requests to itself"
                )


def promises(servers: Mapping[str, AttachedServer]) -> str:
    """Tell which workers are attached servers, and what is not promised of them."""
    lines = [f"{worker} is the server at {server.address}" for worker, server in servers.items()]
    bare = [worker for worker, server in servers.items() if not server.restart_command]
    without = f"{', '.join(bare)} {'has' if len(bare) == 1 else 'have'} none, and would wait until you restart it."
    return "\n".join((*lines, PROMISES.format(without_command=without if bare else "each has one.")))


def _read_key(path: Path) -> str:
    content = read_file(path).strip()
    key = content.decode("ascii", errors="replace")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise KeyFileRefused(path)
    return key
