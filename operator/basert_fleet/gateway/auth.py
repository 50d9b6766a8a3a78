"""Who may ask: the keys file, and which tenant, weight and priorities a bearer token stands for.

The file holds hashes only, so that reading it gives nobody a key:

    keys:
      - name: ci
        sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae   # printf %s "$KEY" | sha256sum
        tenant: build
        weight: 2
        priorities: [normal, low]

A token is found by the hash of what the client sent: how long the look-up takes tells nothing about a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from basert_fleet.core.dispatch import Priority
from basert_fleet.core.errors import FleetError

PriorityName: TypeAlias = Literal["high", "normal", "low"]
Label: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,63}$")]
"""Names end up in logs and metrics: short, and without characters that need quoting."""

DEFAULT_TENANT = "default"


class BadKeysFile(FleetError):
    """The keys file cannot be used; whoever runs with an earlier one keeps that."""

    code = "bad_keys_file"

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        super().__init__(f"cannot use the keys file {path}: " + "; ".join(problems))
        self.path, self.problems = path, tuple(problems)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Key(_Model):
    """One API key and what it may do."""

    name: Label
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the whole token, in hexadecimal."""
    tenant: Label
    """Keys of one tenant share one place in the queue's fairness."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """The tenant's share of busy slots, relative to the other tenants'."""
    priorities: Annotated[tuple[PriorityName, ...], Field(min_length=1)] = ("normal", "low")
    """What `x-basert-priority` may ask for; the first is what a request without the header gets."""

    def allowed(self) -> tuple[Priority, ...]:
        """Return the allowed classes, the default first."""
        return tuple(Priority[name.upper()] for name in self.priorities)


class _KeysFile(_Model):
    keys: Annotated[tuple[Key, ...], Field(min_length=1)]

    @field_validator("keys")
    @classmethod
    def _distinct(cls, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        for kind in ("name", "sha256"):
            values = [getattr(key, kind) for key in keys]
            if len(set(values)) != len(values):
                raise ValueError(f"two keys have the same {kind}")
        return keys


OPEN = Key(name="open", sha256="0" * 64, tenant=DEFAULT_TENANT, priorities=("normal", "high", "low"))
"""What everybody is when no keys are configured; allowed on loopback only, which the command line sees to."""


class Keys:
    """An immutable set of keys. Without a file everybody is the tenant `default`."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._by_hash: Mapping[str, Key] = {key.sha256: key for key in keys}

    def find(self, authorization: bytes | None) -> Key | None:
        """Return the key of an Authorization header's value, or None if it is missing or unknown."""
        if not self._by_hash:
            return OPEN
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        return self._by_hash.get(hashlib.sha256(token.strip()).hexdigest())


def load_keys(path: Path) -> Keys:
    """Read a keys file.

    Raises:
        BadKeysFile: it cannot be read or is wrong; the message names line and field of each problem.
    """
    try:
        document = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        content = yaml.SafeLoader("").construct_document(document) if document is not None else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadKeysFile(path, [" ".join(str(error).split())]) from error
    try:
        return Keys(_KeysFile.model_validate(content).keys)
    except ValidationError as error:
        # include_input=False: a key that was pasted in place of its hash must not be printed.
        found = error.errors(include_input=False, include_url=False)
        problems = [_problem(document, problem["loc"], problem["msg"]) for problem in found]
        raise BadKeysFile(path, problems) from None


def _problem(document: yaml.Node | None, location: tuple[int | str, ...], message: str) -> str:
    field = ".".join(str(step) for step in location) or "the document"
    return f"line {_line(document, location)}: {field}: {message}"


def _line(node: yaml.Node | None, location: tuple[int | str, ...]) -> int:
    """Return the line of the field, or of the closest thing around it that is there."""
    line = 1 if node is None else node.start_mark.line + 1
    for step in location:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            values = {key.value: (key, value) for key, value in node.value}
            if step not in values:
                break
            key, node = values[step]
            line = key.start_mark.line + 1
            continue
        else:
            break
        line = node.start_mark.line + 1
    return line
