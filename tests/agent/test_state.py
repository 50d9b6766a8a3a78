"""What an agent keeps on disk: locks, records, and logs within bounds."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from basert_fleet.agent.state import (
    ProcessRecord,
    SlotAlreadyHeld,
    SlotRecord,
    StateDirectory,
    StateDirectoryHeld,
    StateUnusable,
    boot_time,
)
from basert_fleet.agent.worker_log import ROTATE_ABOVE_BYTES, last_lines, rotate, size


def test_a_record_outlives_its_agent(tmp_path: Path) -> None:
    """The next holder of the slot reads what the last one wrote, `sent` included."""
    first = StateDirectory(tmp_path).open_slot("w-0")
    assert first.read() is None
    first.started(pid=4711, created=12.5, port=8080)
    first.sent()
    first.close()
    second = StateDirectory(tmp_path).open_slot("w-0")
    assert second.read() == ProcessRecord(4711, 12.5, 8080, boot_time(), settled=False)
    second.ended()
    assert second.read() is None
    second.close()


def test_a_settled_generation_is_recorded(tmp_path: Path) -> None:
    """`settled` comes back after `sent`; without a process neither means anything."""
    record = StateDirectory(tmp_path).open_slot("w-0")
    record.sent()
    assert record.read() is None
    record.started(pid=1, created=1.0, port=1)
    record.sent()
    record.settled()
    assert (found := record.read()) is not None
    assert found.settled
    record.close()


@pytest.mark.parametrize("mark", [SlotRecord.sent, SlotRecord.doubted])
def test_a_mark_that_could_not_be_written_is_written_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Callable[[SlotRecord], None]
) -> None:
    """What the disk did not take is not remembered as if it had."""

    def full(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    record = StateDirectory(tmp_path).open_slot("w-0")
    record.attached(port=8896)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            mark(record)
    mark(record)
    assert (found := record.read()) is not None
    assert not found.settled
    record.close()


def test_c25_a_slot_is_held_once(tmp_path: Path) -> None:
    """C25: the second holder is told the lock and what to do."""
    record = StateDirectory(tmp_path).open_slot("w-0")
    with pytest.raises(SlotAlreadyHeld, match=r"w-0 is held by another agent .*--state-dir"):
        StateDirectory(tmp_path).open_slot("w-0")
    record.close()
    StateDirectory(tmp_path).open_slot("w-0").close()


def test_c25_a_directory_is_held_once(tmp_path: Path) -> None:
    """C25: a second fleet on it is told what to do; the lock is free again once the first one has gone."""
    with (
        StateDirectory(tmp_path).held(),
        pytest.raises(StateDirectoryHeld, match=r"is in use by a fleet .*--state-dir"),
        StateDirectory(tmp_path).held(),
    ):
        pass
    with StateDirectory(tmp_path).held():
        pass


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 600, b"not json", b'{"pid": "x"}', os.urandom(300)])
def test_a_damaged_record_is_no_record(tmp_path: Path, garbage: bytes) -> None:
    """Whatever lies in the file, the slot can be opened; nothing is adopted or killed for it."""
    state = StateDirectory(tmp_path)
    state.open_slot("w-0").close()
    (tmp_path / "slots" / "w-0").write_bytes(garbage)
    record = state.open_slot("w-0")
    assert record.read() is None
    record.close()


def test_an_unusable_directory_is_told(tmp_path: Path) -> None:
    """A path that is a file cannot be the state directory, and the error says what to give instead."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnusable, match="--state-dir"):
        StateDirectory(tmp_path / "file")
    (tmp_path / "state" / "lock").mkdir(parents=True)
    with pytest.raises(StateUnusable, match="Is a directory"), StateDirectory(tmp_path / "state").held():
        pass


def test_a_large_log_is_cut_while_its_writer_keeps_it_open(tmp_path: Path) -> None:
    """The tail is kept beside it, and what is appended later lands in the emptied file (C35)."""
    log = tmp_path / "w-0.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * ROTATE_ABOVE_BYTES + b"the end\n")
        assert rotate(log)
        writer.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    kept = (tmp_path / "w-0.log.1").read_bytes()
    assert len(kept) == ROTATE_ABOVE_BYTES
    assert kept.endswith(b"the end\n")


def test_a_small_or_missing_log_is_left_alone(tmp_path: Path) -> None:
    """Nothing is cut before its time."""
    log = tmp_path / "w-0.log"
    assert not rotate(log)
    assert last_lines(log, 3) == []
    log.write_text("a\nb\nc\n")
    assert not rotate(log)
    assert last_lines(log, 2) == ["b", "c"]
    assert last_lines(log, 2, since=size(log) - 2) == ["c"]
    assert last_lines(log, 2, since=size(log)) == []
