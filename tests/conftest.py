"""What holds for every test: how much hypothesis tries, and that no test leaves a process behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# CI tries the same, larger set each time, so that a red run can be repeated; at a desk each run tries new examples.
settings.register_profile("ci", derandomize=True, max_examples=300, deadline=None, print_blob=True)
settings.register_profile("dev", max_examples=50, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

EXIT_GRACE_SECONDS = 2.0  # chosen: a child that was just told to end may still be ending


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail a test that ends while a process it started still runs, and end that process for the tests after it."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    _, running = psutil.wait_procs(left, timeout=EXIT_GRACE_SECONDS)
    names = [_describe(child) for child in running]
    for child in running:
        child.kill()
    assert not names, f"the test left processes running: {names}"


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.cmdline()}"
    except psutil.Error:
        return str(process.pid)
