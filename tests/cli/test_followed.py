"""Following a file: only a settled, right change counts, and each is told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.cli.followed import Changed, FileUnreadable, Followed, Refused
from basert_fleet.core.errors import FleetError


class NotRight(FleetError):
    """What the parser of these tests raises."""


def parse(content: bytes) -> str:
    """Refuse what begins with `bad`."""
    if content.startswith(b"bad"):
        raise NotRight(f"not right: {content.decode()}")
    return content.decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is right."""
    path = tmp_path / "file"
    path.write_bytes(b"one")
    return path


def test_a_file_must_be_right_at_the_start(file: Path) -> None:
    """There is no last right content to go on with yet."""
    assert Followed(file, parse).first == "one"
    file.write_bytes(b"bad")
    with pytest.raises(NotRight):
        Followed(file, parse)
    file.unlink()
    with pytest.raises(FileUnreadable, match=f"cannot read {file}: No such file or directory"):
        Followed(file, parse)


def test_a_change_counts_when_it_was_seen_twice(file: Path) -> None:
    """Half a file, seen once while somebody writes, is never taken for a change."""
    followed = Followed(file, parse)
    assert followed.poll() is None
    file.write_bytes(b"tw")
    assert followed.poll() is None
    file.write_bytes(b"two")
    assert followed.poll() is None
    assert followed.poll() == Changed("two")
    assert followed.poll() is None


def test_a_wrong_file_is_told_once(file: Path) -> None:
    """What is wrong is told when it appears, not every second; putting it right again is a change."""
    followed = Followed(file, parse)
    file.write_bytes(b"bad one")
    assert [followed.poll() for _ in range(4)] == [None, Refused("not right: bad one"), None, None]
    file.write_bytes(b"one")
    assert [followed.poll() for _ in range(3)] == [None, Changed("one"), None]


def test_a_file_that_is_gone_is_told_once(file: Path) -> None:
    """A missing file is no instruction; it is followed again when it is back."""
    followed = Followed(file, parse)
    file.unlink()
    told = [followed.poll() for _ in range(3)]
    assert told == [None, Refused(f"cannot read {file}: No such file or directory"), None]
    file.write_bytes(b"two")
    assert [followed.poll() for _ in range(2)] == [None, Changed("two")]


def test_a_touched_file_is_no_change(file: Path) -> None:
    """Only content counts: writing the same again tells nothing."""
    followed = Followed(file, parse)
    file.write_bytes(b"one")
    assert [followed.poll() for _ in range(3)] == [None, None, None]


@given(contents=st.lists(st.sampled_from(["one", "two", "bad"]), max_size=20))
def test_the_last_right_content_is_what_holds(tmp_path_factory: pytest.TempPathFactory, contents: list[str]) -> None:
    """After any edits, once they have settled, what was told last is what the file holds, if that is right."""
    path = tmp_path_factory.mktemp("followed") / "file"
    path.write_text("one")
    followed = Followed(path, parse)
    holds = followed.first
    for content in [*contents, "settled", "settled"]:
        path.write_text(content)
        match followed.poll():
            case Changed(value):
                holds = value
                assert value == content
            case Refused():
                assert content == "bad"
            case None:
                pass
    assert holds == "settled"
