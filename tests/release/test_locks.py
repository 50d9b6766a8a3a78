"""The offline comparison of the locks with pyproject.toml."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = {
    "project": {"dependencies": ["alpha>=2"], "optional-dependencies": {"more": ["extra>=5"]}},
    "dependency-groups": {"build": ["builder>=1"], "dev": [{"include-group": "build"}, "tester>=3"]},
}
BASE = "alpha==2.1 \\\n    --hash=sha256:aa\nbuilder==1.0 \\\n    --hash=sha256:bb\n    # via us\n"
DEV = BASE + ("tester==3.0 ; python_version > '3' \\\n    --hash=sha256:cc\nextra==5.1 \\\n    --hash=sha256:dd\n")


def load_script(name: str):
    """Import a script by its path: scripts are no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_locks = load_script("check_locks")


@pytest.mark.parametrize(
    ("base", "dev", "fault"),
    [
        (BASE.replace("alpha==2.1", "alpha==1.9"), DEV, "base.txt pins alpha 1.9"),
        (BASE, DEV.replace("tester==3.0", "other==3.0"), "dev.txt does not pin tester"),
        (BASE, DEV.replace("extra==5.1", "extra==4.9"), "dev.txt pins extra 4.9"),
        (BASE, DEV.replace("builder", "mason"), "dev.txt does not pin builder"),
        (BASE, DEV.replace(" \\\n    --hash=sha256:cc", ""), "pins tester without a hash"),
        (BASE, DEV.replace("alpha==2.1", "alpha==2.2"), "different versions of alpha"),
        (BASE + "--index-url https://pypi.example\n", DEV, "names a URL"),
    ],
)
def test_each_kind_of_stale_lock_is_named(base, dev, fault):
    """A lock that does not fit pyproject.toml is told by file, package and reason."""
    assert any(fault in found for found in check_locks.faults(PROJECT, {"base": base, "dev": dev}))


def test_fitting_locks_have_no_fault():
    """Locks that pin all that is asked for, with hashes, pass."""
    assert list(check_locks.faults(PROJECT, {"base": BASE, "dev": DEV})) == []


def test_every_pin_of_the_real_locks_is_read():
    """The reader of locks misses no entry: it finds as many as there are lines with a pin."""
    text = (ROOT / "requirements" / "dev.txt").read_text()
    lines = [line for line in text.splitlines() if "==" in line.split("#")[0].split(";")[0]]
    assert sum(len(versions) for versions in check_locks.pins(text).values()) == len(lines)
