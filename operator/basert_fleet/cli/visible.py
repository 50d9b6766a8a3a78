"""Text that a server or a person made up, before it is shown: nothing in it may act on a terminal or a document."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""Return the text on one line, what cannot be printed written as an escape: `\x1b`, `\n`, `\ud800`.

    That covers all that XML cannot hold: control characters, halves of surrogates, U+FFFE and U+FFFF.
    """
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
