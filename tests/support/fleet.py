"""A whole fleet as its user runs it: `basert-fleet up` as its own process, on real ports, with emulated workers."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.alive import lives
from support.emulator import read_journal

PATIENCE_SECONDS = 90.0  # a backstop, never waited for in full
LOOK_SECONDS = 0.05
MODEL = "Qwen/Qwen3.6-35B-A3B"
SIM = [sys.executable, "-m", "basert_fleet.sim"]


def pool(*sim_options: str, name: str = "qwen", model: str = MODEL, replicas: int = 4, **spec: Any) -> dict[str, Any]:
    """Return a pool document of emulated workers; `journal` is added by `fleet`."""
    return {
        "apiVersion": "fleet.basert.dev/v1alpha1",
        "kind": "BasertPool",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": model, "path": "model.base"},
            "replicas": replicas,
            "server": {"command": SIM, "args": list(sim_options)},
            **spec,
        },
    }


class Fleet:
    """One running fleet."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process, port: int, ops_port: int) -> None:
        self.folder, self.process = folder, process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.ops_url = f"http://127.0.0.1:{ops_port}"
        self.file = folder / "fleet.yaml"
        self.journal_path = folder / "journal.jsonl"
        self._expected_status = 0
        self._ops = httpx.AsyncClient(base_url=self.ops_url, timeout=PATIENCE_SECONDS)

    async def observed(self) -> dict[str, Any]:
        """Return the fleet's own view of itself."""
        answer = await self._ops.get("/fleet/observed")
        return dict(answer.raise_for_status().json())

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return every sample of a scrape, by name and labels."""
        text = (await self._ops.get("/metrics")).raise_for_status().text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        wanted = frozenset(labels.items())
        return sum(value for (found, has), value in (await self.metrics()).items() if found == name and wanted <= has)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return what is observed once it meets a condition."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if self.process.returncode is not None:
                    raise AssertionError(f"the fleet ended with {self.process.returncode}: {self.log()[-3000:]}")
                try:
                    seen = await self.observed()
                    if condition(seen):
                        return seen
                except httpx.TransportError:
                    pass
                await asyncio.sleep(LOOK_SECONDS)

    async def ready(self, workers: int) -> None:
        """Wait until so many workers are READY."""
        await self.until(lambda seen: sum(w["phase"] == "READY" for w in seen["workers"]) >= workers)

    def journal(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return what really ran in all emulators."""
        return [record for record in read_journal(self.journal_path) if event in (None, record["event"])]

    def overlaps(self) -> list[dict[str, Any]]:
        """Return generations that began while another ran in the same process: the emulators' own word for it."""
        return [record for record in self.journal("begin") if record["overlap"]]

    def log(self) -> str:
        """Return what the fleet wrote to stderr."""
        return (self.folder / "stderr").read_text(errors="replace")

    def lease_lines(self) -> list[dict[str, Any]]:
        """Return the log's lines that are JSON."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def children(self) -> list[psutil.Process]:
        """Return the processes that the fleet has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def expect_status(self, status: int) -> None:
        """Say how this fleet's process ends, if not well."""
        self._expected_status = status

    async def stop(self) -> bool:
        """End the fleet as an operator does; say whether it ended as expected."""
        await self._ops.aclose()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait() == self._expected_status


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


@asynccontextmanager
async def fleet(
    folder: Path, *pools: dict[str, Any], keys: str = "", attach: Sequence[dict[str, Any]] = ()
) -> AsyncIterator[Fleet]:
    """Run a fleet whose workers are READY; afterwards it has ended by itself and left no process behind.

    `attach` are servers that something else runs; the pools that they serve have no `server`.
    """
    write_pools(folder, *pools, attach=attach)
    port, ops_port = free_ports(2)
    arguments = ["up", str(folder / "fleet.yaml"), "--listen", f"127.0.0.1:{port}"]
    arguments += ["--ops-listen", f"127.0.0.1:{ops_port}", "--state-dir", str(folder / "state")]
    if keys:
        (folder / "keys.yaml").write_text(keys)
        arguments += ["--keys-file", str(folder / "keys.yaml")]
    with (folder / "stderr").open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "basert_fleet.cli.main", *arguments, stderr=stderr, stdin=asyncio.subprocess.DEVNULL
        )
    running = Fleet(folder, process, port, ops_port)
    family: list[psutil.Process] = []
    try:
        await running.ready(sum(document["spec"]["replicas"] for document in pools))
        yield running
        family = running.children() if process.returncode is None else []
        assert await running.stop(), f"exit status {process.returncode}: {running.log()[-3000:]}"
        left = list(filter(lives, family))
        assert left == [], f"left behind: {left}"
    finally:
        if process.returncode is None:
            for child in family or running.children():
                child.kill()
            process.kill()
            await process.wait()


def attached_pool(replicas: int) -> dict[str, Any]:
    """Return the document of a pool whose servers something else runs."""
    document = pool(replicas=replicas)
    del document["spec"]["server"]
    return document


def write_pools(folder: Path, *pools: dict[str, Any], attach: Sequence[dict[str, Any]] = ()) -> None:
    """Write the fleet's file, each emulator that the fleet starts keeping the shared journal."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = []
    if attach:
        documents.append(
            {"apiVersion": "fleet.basert.dev/v1alpha1", "kind": "Standalone", "spec": {"attach": [*attach]}}
        )
    for document in pools:
        server = document["spec"].get("server", {})
        if "command" not in server:
            documents.append(document)
            continue
        args = [*server["args"], "--sim-journal", str(folder / "journal.jsonl")]
        documents.append({**document, "spec": {**document["spec"], "server": {**server, "args": args}}})
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(documents))
