"""Tell whether the locks are in step with pyproject.toml, without a network.

It does not resolve again: it compares what is asked for with what is pinned. `make lock` mends what it finds.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent

# Each lock and the dependency group that it holds beside the package's own dependencies.
GROUP_OF_LOCK = {"base": "build", "dev": "dev"}

# One entry of a lock: a pin, perhaps with a marker, and its hashes on continued lines.
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?P<rest>(?:.*\\\n)*.*)", re.MULTILINE)

Pins = dict[str, set[str]]  # a universal lock may pin one package twice, under two markers


def requirements(project: Mapping[str, Any], group: str) -> Iterator[Requirement]:
    """Yield what the package and one dependency group ask for, the groups that it includes too.

    Development asks for the package's extras besides.
    """
    yield from map(Requirement, project["project"]["dependencies"])
    if group == "dev":
        for extra in project["project"]["optional-dependencies"].values():
            yield from map(Requirement, extra)
    pending = [group]
    while pending:
        for entry in project["dependency-groups"][pending.pop()]:
            if isinstance(entry, str):
                yield Requirement(entry)
            else:
                pending.append(entry["include-group"])


def pins(lock: str) -> Pins:
    """Return the pinned versions of each package in a lock's text."""
    found: Pins = {}
    for entry in ENTRY.finditer(lock):
        found.setdefault(canonicalize_name(entry["name"]), set()).add(entry["version"])
    return found


def faults(project: Mapping[str, Any], locks: Mapping[str, str]) -> Iterator[str]:
    """Yield one sentence for each way in which the locks do not fit the project; `locks` maps a name to its text."""
    for name, text in locks.items():
        pinned = pins(text)
        for wanted in requirements(project, GROUP_OF_LOCK[name]):
            versions = pinned.get(canonicalize_name(wanted.name), set())
            if not versions:
                yield f"requirements/{name}.txt does not pin {wanted.name}, which pyproject.toml asks for"
            for version in sorted(versions):
                if not wanted.specifier.contains(version, prereleases=True):
                    yield f"requirements/{name}.txt pins {wanted.name} {version}; pyproject.toml asks for {wanted}"
        for entry in ENTRY.finditer(text):
            if "--hash=sha256:" not in entry["rest"]:
                yield f"requirements/{name}.txt pins {entry['name']} without a hash"
        if "://" in text:
            yield f"requirements/{name}.txt names a URL: a lock works with any index"
    base, dev = pins(locks["base"]), pins(locks["dev"])
    for package in base:
        if base[package] != dev.get(package):
            yield f"the two locks pin different versions of {package}: tests would not run what a Mac installs"


def main() -> int:
    """Print every fault; the exit code tells whether there was one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locks = {name: (ROOT / "requirements" / f"{name}.txt").read_text() for name in GROUP_OF_LOCK}
    found = list(faults(project, locks))
    for fault in found:
        print(fault, file=sys.stderr)
    if found:
        print("Run `make lock` and commit what it writes.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
