"""A restart command as an operator would write one: end the emulator of a pid file, and leave a new one in its place.

`python restart_emulator.py PID_FILE PORT [EMULATOR FLAG ...]` returns once the new one was started.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil


def end(pid_file: Path) -> None:
    """End the emulator that the file names, unless the pid is somebody else's by now."""
    if not pid_file.exists():
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(pid_file.read_text()))
        if "basert_fleet.sim" in process.cmdline():  # of a zombie it is empty
            process.kill()
            psutil.wait_procs([process], timeout=10)


def start(pid_file: Path, port: str, *flags: str) -> None:
    """Start an emulator that outlives this program."""
    process = subprocess.Popen(
        [sys.executable, "-m", "basert_fleet.sim", "model.base", "--port", port, *flags],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pid_file.write_text(str(process.pid))


if __name__ == "__main__":
    end(Path(sys.argv[1]))
    start(Path(sys.argv[1]), *sys.argv[2:])
