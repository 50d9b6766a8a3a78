"""Workers' documents on disk: whole or not there, and never a reason not to start."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from basert_fleet.cli.kept import KeptWorkers
from basert_fleet.core.api import BasertWorker
from basert_fleet.core.plan import NodeView, plan
from support.scripted_agent import pool


@pytest.fixture
def workers() -> tuple[BasertWorker, ...]:
    """Two workers."""
    return plan([pool(replicas=2)], [NodeView("mac-1", None, connected=True)], []).workers


def documents(workers: tuple[BasertWorker, ...]) -> tuple[bytes, ...]:
    """Return workers as they are kept."""
    return tuple(worker.model_dump_json(by_alias=True).encode() for worker in workers)


def test_what_is_kept_is_loaded(tmp_path: Path, workers: tuple[BasertWorker, ...]) -> None:
    """The next start finds the same workers, in a file that only its owner reads; then the newer ones."""
    said: list[str] = []
    path = tmp_path / "plan.json"
    kept = KeptWorkers(path, said.append)
    assert kept.load() == ()
    kept.save(documents(workers))
    assert KeptWorkers(path, said.append).load() == workers
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept.save(documents(workers[:1]))
    assert kept.load() == workers[:1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert said == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"workers": [{}]}', b'{"workers": 1}', b"\xff"])
def test_a_damaged_file_is_told_and_counts_as_none(content: bytes, tmp_path: Path) -> None:
    """The start goes on without it."""
    said: list[str] = []
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    assert KeptWorkers(path, said.append).load() == ()
    assert len(said) == 1
    assert said[0].startswith(f"cannot read {path}")


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, workers: tuple[BasertWorker, ...]) -> None:
    """A full or missing disk stops nothing; it is told again only after it had worked in between."""
    said: list[str] = []
    folder = tmp_path / "later"
    kept = KeptWorkers(folder / "plan.json", said.append)
    kept.save(documents(workers))
    kept.save(documents(workers[:1]))
    assert len(said) == 1
    folder.mkdir()
    kept.save(documents(workers))
    assert kept.load() == workers
    assert len(said) == 1
