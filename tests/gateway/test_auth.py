"""The keys file: what it grants, and what is said when it is wrong."""

from __future__ import annotations

import hashlib

import pytest

from basert_fleet.core.dispatch import Priority
from basert_fleet.gateway.auth import DEFAULT_TENANT, BadKeysFile, Keys, load_keys

GOOD = hashlib.sha256(b"sk-good").hexdigest()
FILE = f"""\
keys:
  - name: ci
    sha256: {GOOD}
    tenant: build
    weight: 2
    priorities: [high, low]
"""


def test_a_key_is_found_by_what_the_client_sends(tmp_path):
    """The scheme is read without regard to case; anything else finds nothing."""
    path = tmp_path / "keys.yaml"
    path.write_text(FILE)
    keys = load_keys(path)
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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (FILE.replace("weight: 2", "weight: -2"), "line 5: keys.0.weight:"),
        (FILE.replace("tenant: build", "tennant: build"), "line 4: keys.0.tennant:"),
        (FILE.replace("[high, low]", "[urgent]"), "line 6: keys.0.priorities.0:"),
        (FILE.replace(GOOD, "sk-good"), "line 3: keys.0.sha256:"),
        (FILE.replace("    tenant: build\n", ""), "line 2: keys.0.tenant: Field required"),
        (FILE + FILE.removeprefix("keys:\n"), "the same name"),
        ("keys: []\n", "line 1: keys:"),
        ("", "line 1: the document:"),
        ("keys: [", "line 1"),
        ("keys: 3\n", "line 1: keys:"),
    ],
)
def test_a_wrong_file_is_told_by_line_and_field(tmp_path, content, told):
    """Each problem names its line and field, and never repeats a value that may be a key."""
    path = tmp_path / "keys.yaml"
    path.write_text(content)
    with pytest.raises(BadKeysFile) as raised:
        load_keys(path)
    assert told in str(raised.value)
    assert str(path) in str(raised.value)
    assert "sk-good" not in str(raised.value)


def test_a_missing_file_is_told(tmp_path):
    """A path that cannot be read is an error of the same kind, with the system's reason."""
    with pytest.raises(BadKeysFile, match="No such file"):
        load_keys(tmp_path / "none.yaml")
