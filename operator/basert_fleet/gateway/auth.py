"""Who may ask: the keys file, and which tenant, weight and priorities a bearer token stands for.

The file holds hashes only, so that reading it gives nobody a key:

    keys:
      - name: ci
        sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae   # printf %s "$KEY" | shasum -a 256
        tenant: build
        weight: 2
        priorities: [normal, low]

A token is found by the hash of what the client sent: how long the look-up takes tells nothing about a key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from basert_fleet.core.dispatch import Priority
from basert_fleet.core.documents import DocumentRefused, FileRefused, read_model
from basert_fleet.core.yaml_source import Document, Path, Problem, YamlRefused, read_documents

PriorityName: TypeAlias = Literal["high", "normal", "low"]
DEFAULT_TENANT = "default"
REPEATABLE = ("weight", "priorities")
"""Fields whose wrong values a message may repeat; any other may hold a key that was pasted in the wrong place."""


class BadKeysFile(FileRefused):
    """The keys file cannot be used; whoever runs with an earlier one keeps that."""

    code = "bad_keys_file"


def _matching(pattern: str, words: str) -> AfterValidator:
    """Refuse what does not match, in words of a person's."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise PydanticCustomError("pattern", "should be {words}", {"words": words})
        return value

    return AfterValidator(check)


Label: TypeAlias = Annotated[str, _matching(r"[A-Za-z0-9._-]{1,63}", "1 to 63 letters, digits, `.`, `_` or `-`")]
"""Names end up in logs and metrics: short, and without characters that need quoting."""
Hash: TypeAlias = Annotated[str, _matching(r"[0-9a-f]{64}", "the key's SHA-256, 64 lower-case hexadecimal digits")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Key(_Model):
    """One API key and what it may do."""

    name: Label
    sha256: Hash
    """Of the whole token."""
    tenant: Label
    """Keys of one tenant share one place in the queue's fairness."""
    weight: Annotated[float, Field(gt=0, le=1000, strict=True)] = 1.0
    """The tenant's share of busy slots, relative to the other tenants'."""
    priorities: Annotated[tuple[PriorityName, ...], Field(min_length=1)] = ("normal", "low")
    """What `x-basert-priority` may ask for; the first is what a request without the header gets."""

    def allowed(self) -> tuple[Priority, ...]:
        """Return the allowed classes, the default first."""
        return tuple(Priority[name.upper()] for name in self.priorities)


class _KeysFile(_Model):
    keys: Annotated[tuple[Key, ...], Field(min_length=1)]


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


def read_keys(content: bytes, name: str) -> Keys:
    """Return the keys of a keys file; `name` is what messages call it.

    Raises:
        BadKeysFile: anything is wrong with it; tells all of it by line and field, and no value that may be a key.
    """
    try:
        documents = read_documents(content)
    except YamlRefused as refused:
        raise BadKeysFile(name, refused.problems) from refused
    if len(documents) != 1:
        line = documents[1].line if documents else 1
        raise BadKeysFile(name, [Problem(line, (), f"should be one document, found {len(documents) or 'nothing'}")])
    (document,) = documents
    try:
        keys = read_model(_KeysFile, document, _may_hold_a_key).keys
    except DocumentRefused as refused:
        raise BadKeysFile(name, refused.problems) from refused
    if repeated := list(_repeated(document, keys)):
        raise BadKeysFile(name, repeated)
    return Keys(keys)


def _may_hold_a_key(path: Path) -> bool:
    return not any(field in path for field in REPEATABLE)


def _repeated(document: Document, keys: Sequence[Key]) -> Iterator[Problem]:
    """Find what two keys share though it tells them apart."""
    for field in ("name", "sha256"):
        first: dict[str, int] = {}
        for position, key in enumerate(keys):
            path = ("keys", position, field)
            line, value = document.line_of(path), getattr(key, field)
            if value in first:
                yield Problem(line, path, f"the same as on line {first[value]}")
            first.setdefault(value, line)
