"""Token files: what counts as a token, and messages that repeat none."""

from __future__ import annotations

import pytest

from basert_fleet.cli.tokens import BadTokenFile, read_token, read_tokens


def test_a_gateway_takes_one_token_a_line() -> None:
    """Blank lines and line ends of any kind are no part of a token."""
    assert read_tokens(b"one\r\n\n  two \n", "F") == ("one", "two")
    assert read_token(b"one\n", "F") == "one"


@pytest.mark.parametrize(
    "content", [b"", b"\n \n", b"two words", b"sm\xc3\xb6rg\xc3\xa5s", b"\xff", b"good\nbad token"]
)
def test_what_is_no_token_is_refused(content: bytes) -> None:
    """By the file's name, and without its content: half of it may be a token."""
    with pytest.raises(BadTokenFile, match=r"^F ") as refused:
        read_tokens(content, "F")
    assert "good" not in str(refused.value)


def test_an_agent_shows_one_token() -> None:
    """Which of two it should show nobody can guess."""
    with pytest.raises(BadTokenFile, match="holds 2 tokens"):
        read_token(b"one\ntwo\n", "F")
