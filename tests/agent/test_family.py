"""Finding what a process forked, by the kernel's list and by a look at all processes."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from basert_fleet.agent import family
from basert_fleet.agent.processes import Child, spawn
from support.turns import until

FORKS = """
import subprocess, sys, threading
LEAF = "import sys, time; print('leaf', flush=True); time.sleep(600)"
BRANCH = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LEAF!r}])"
threading.Thread(target=lambda: subprocess.run([sys.executable, "-c", BRANCH], start_new_session=True)).start()
subprocess.run([sys.executable, "-c", LEAF])
"""


async def forked(folder: Path) -> Child:
    """Start a process that forks from two threads: a child, and in a session of its own a child with a child."""
    child = await spawn([sys.executable, "-c", FORKS], env={}, log=folder / "log", slot=folder)
    await until(lambda: (folder / "log").read_text().count("leaf") == 2)
    return child


@pytest.fixture(params=["listed", "looked for"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Find children by the kernel's list where it has one, and as everywhere else."""
    if request.param == "looked for":
        monkeypatch.setattr(family, "_lists_children", lambda: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
async def test_c14_all_that_was_forked_is_found(tmp_path: Path) -> None:
    """C14: children of every thread and their children, whatever their session, and nothing else."""
    child = await forked(tmp_path)
    process = psutil.Process(child.pid)
    found = family.descendants(process)
    assert len(found) == 3
    assert set(found) == set(process.children(recursive=True))
    await child.end(drain_seconds=0)


@pytest.mark.usefixtures("way")
async def test_a_process_that_is_gone_has_no_family(tmp_path: Path) -> None:
    """Whoever looks too late finds nothing, and no other process that got its pid."""
    child = await forked(tmp_path)
    process = psutil.Process(child.pid)
    await child.end(drain_seconds=0)
    try:
        assert family.descendants(process) == []
    except psutil.NoSuchProcess:
        assert not family._lists_children()


async def test_a_listed_pid_that_has_another_parent_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that ended after it was listed may have left its pid to somebody else's process."""
    child = await forked(tmp_path)
    monkeypatch.setattr(family, "_lists_children", lambda: True)
    monkeypatch.setattr(family, "_listed", lambda _pid: [psutil.Process().pid])
    assert family.descendants(psutil.Process(child.pid)) == []
    monkeypatch.undo()
    await child.end(drain_seconds=0)
