"""Workers' documents on disk: what a process was last told or last wanted, for the one that starts after it.

A gateway keeps its plan so, an agent its desired state. The file is replaced whole, so that a reader finds the old one
or the new one. It is not synced: it must outlive the process, not the machine, and its loss is no harm. What it holds
is known elsewhere too (agents say what they run, a gateway says what it wants), so a file that cannot be read or
written is told, and costs no more than a slower start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pydantic import ValidationError

from basert_fleet.core.api import BasertWorker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PRIVATE = 0o600
"""For its owner only: the documents hold the workers' environment."""


class _Content(msgspec.Struct, frozen=True):
    workers: tuple[msgspec.Raw, ...]


class KeptWorkers:
    """One file of BasertWorker documents. Neither reading nor writing ever fails; trouble is told to `say`, once."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._trouble = ""

    def load(self) -> tuple[BasertWorker, ...]:
        """Return what was kept; nothing if there is no file, or if it cannot be read."""
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
            return tuple(BasertWorker.model_validate_json(bytes(document)) for document in content.workers)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError, ValidationError) as error:
            self._say(f"cannot read {self._path}, so this start knows nothing of the last one: {error}")
            return ()

    def save(self, documents: tuple[bytes, ...]) -> None:
        """Keep these instead."""
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.touch(PRIVATE)
            new.write_bytes(msgspec.json.encode(_Content(tuple(map(msgspec.Raw, documents)))))
            new.replace(self._path)
        except OSError as error:
            trouble = f"cannot write {self._path}: {error.strerror or error}. The next start will know an older state."
            if trouble != self._trouble:
                self._say(trouble)
            self._trouble = trouble
        else:
            self._trouble = ""
