"""The keys file: what it grants, and what is said when it is wrong."""

from __future__ import annotations

import hashlib

import pytest

from basert_fleet.core.dispatch import Priority
from basert_fleet.gateway.auth import DEFAULT_TENANT, BadKeysFile, Keys, read_keys

GOOD = hashlib.sha256(b"sk-good").hexdigest()
FILE = f"""\
keys:
  - name: ci
    sha256: {GOOD}
    tenant: build
    weight: 2
    priorities: [high, low]
"""


def problems(content: str | bytes) -> list[str]:
    """What is told of a keys file: its lines below the first one."""
    with pytest.raises(BadKeysFile) as raised:
        read_keys(content.encode() if isinstance(content, str) else content, "keys.yaml")
    first, *lines = str(raised.value).splitlines()
    assert first == f"keys.yaml is refused, {len(lines)} problem{'s' * (len(lines) > 1)}:"
    return lines


def test_a_key_is_found_by_what_the_client_sends():
    """The scheme is read without regard to case; anything else finds nothing."""
    keys = read_keys(FILE.encode(), "keys.yaml")
    found = keys.find(b"bearer sk-good")
    assert (found.name, found.tenant, found.weight) == ("ci", "build", 2.0)
    assert found.allowed() == (Priority.HIGH, Priority.LOW)
    for other in (None, b"", b"Bearer sk-bad", b"Basic sk-good", b"sk-good", b"Bearer"):
        assert keys.find(other) is None


def test_without_a_file_everybody_is_the_default_tenant():
    """An open gateway serves all priorities, normal by default."""
    anybody = Keys().find(None)
    assert anybody.tenant == DEFAULT_TENANT
    assert anybody.allowed()[0] is Priority.NORMAL
    assert set(anybody.allowed()) == set(Priority)


SHA256 = "should be the key's SHA-256, 64 lower-case hexadecimal digits, found a string"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (FILE.replace("weight: 2", "weight: -2"), "5: keys[0].weight: should be greater than 0, found -2"),
        (FILE.replace("weight: 2", "weight: '2'"), '5: keys[0].weight: should be a number, found "2"'),
        (
            FILE.replace("[high, low]", "[urgent]"),
            "6: keys[0].priorities[0]: should be 'high', 'normal' or 'low', found \"urgent\"",
        ),
        (FILE.replace(GOOD, "sk-good"), f"3: keys[0].sha256: {SHA256}"),
        (FILE.replace(GOOD, GOOD.upper()), f"3: keys[0].sha256: {SHA256}"),
        (FILE.replace(GOOD, "12345"), "3: keys[0].sha256: should be a string, found a number"),
        (
            FILE.replace("name: ci", "name: c i"),
            "2: keys[0].name: should be 1 to 63 letters, digits, `.`, `_` or `-`, found a string",
        ),
        (FILE.replace("    tenant: build\n", ""), "2: keys[0].tenant: missing"),
        ("keys: []\n", "1: keys: should have at least 1 item, not 0, found a list"),
        ("keys: [sk-good]\n", "1: keys[0]: should be a mapping of fields, found a string"),
        ("sk-good\n", "1: should be a mapping of fields, found a string"),
        ("keys: 3\n", "1: keys: should be a list, found a number"),
        ("", "1: should be one document, found nothing"),
        (f"{FILE}---\n{FILE}", "8: should be one document, found 2"),
        (f"{FILE}  - name: ci\n    name: cd\n", "8: keys[1].name: given twice, first on line 7"),
    ],
)
def test_a_wrong_file_is_told_by_line_and_field(content, told):
    """One mistake is one line, in the form of a fleet file's, and never repeats a value that may be a key."""
    assert problems(content) == [f"keys.yaml:{told}"]
    assert "sk-good" not in told


def test_an_unknown_field_is_told_with_the_nearest_known_one():
    """A misspelt field is unknown, and the right one is missing."""
    assert problems(FILE.replace("tenant: build", "tennant: build")) == [
        "keys.yaml:2: keys[0].tenant: missing",
        "keys.yaml:4: keys[0].tennant: unknown field; did you mean tenant?",
    ]


def test_two_keys_have_two_names_and_two_hashes():
    """What tells keys apart may be given once; the hash is not repeated in the message."""
    assert problems(FILE + FILE.removeprefix("keys:\n")) == [
        "keys.yaml:7: keys[1].name: the same as on line 2",
        "keys.yaml:8: keys[1].sha256: the same as on line 3",
    ]
    one = f"{{name: a, tenant: t, sha256: {GOOD}}}"
    assert len(problems(f"keys: [{one}, {one}]")) == 2


@pytest.mark.parametrize("content", ["keys: [", b"keys: \xff", "keys: *none"])
def test_what_is_no_yaml_is_told_with_its_line(content):
    """Text that cannot be parsed is refused, not read as nothing."""
    assert problems(content)[0].startswith("keys.yaml:")
