"""Token files: what counts as a token, and messages that repeat none."""

from __future__ import annotations

from pathlib import Path

import pytest

from basert_fleet.cli.tokens import BadTokenFile, read_token, read_tokens, warn_if_exposed


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


@pytest.mark.parametrize(("mode", "times"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1), (0o620, 1)])
def test_a_file_that_others_may_use_is_warned_of(mode: int, times: int, tmp_path: Path) -> None:
    """With the command that mends it; it is used all the same."""
    file = tmp_path / "tokens"
    file.write_text("secret\n")
    file.chmod(mode)
    said: list[str] = []
    warn_if_exposed(file, said.append)
    warn_if_exposed(None, said.append)
    assert len(said) == times
    assert all(line.endswith(f"(mode {mode:03o}): chmod 600 {file}") for line in said)
