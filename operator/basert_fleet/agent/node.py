"""What this machine offers to workers."""

from __future__ import annotations

import platform
import subprocess

import psutil

RESERVED_BYTES = 4 * 1024**3
"""Chosen: what macOS and the agent need beside the workers; at most a quarter of a small machine."""
WIRED_LIMIT_SYSCTL = "iogpu.wired_limit_mb"
"""macOS: how much memory the GPU may wire; 0 means the system's own default. Lost at reboot."""
SYSCTL_SECONDS = 5.0


def allocatable_bytes() -> int:
    """Return the memory that workers may use: total minus a reserve, and on macOS never above the GPU's wired limit."""
    total = psutil.virtual_memory().total
    usable = total - min(RESERVED_BYTES, total // 4)
    limit = _wired_limit_bytes() if platform.system() == "Darwin" else None
    return usable if limit is None else min(usable, limit)


def _wired_limit_bytes() -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command without input from anyone
            ["/usr/sbin/sysctl", "-n", WIRED_LIMIT_SYSCTL],
            capture_output=True,
            text=True,
            check=True,
            timeout=SYSCTL_SECONDS,
        )
        megabytes = int(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return megabytes * 1024**2 or None
