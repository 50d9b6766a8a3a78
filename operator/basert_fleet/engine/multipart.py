"""Reading a few short text fields of a multipart form, without copying the file that makes up most of it."""

from __future__ import annotations

import re

MAX_FIELD_BYTES = 4_096
"""Chosen: far above any model name."""
MAX_PARTS = 64
"""Chosen: OpenAI's transcription form has about ten."""
MAX_PART_HEAD_BYTES = 8_192

_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^;,"\s]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'(?<![\w*])name="([^"\r\n]*)"|(?<![\w*])name=([^;"\s]+)', re.IGNORECASE)
_DISPOSITION = re.compile(rb"^content-disposition:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)


class MalformedForm(ValueError):
    """A body that is not the form its content type announces, or that names a field twice."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def is_form(content_type: str) -> bool:
    """Say whether a body of this content type is a multipart form."""
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def canonical(content_type: str) -> str:
    """Return a form's content type with nothing in it but the boundary: whatever else a client wrote stays behind.

    Raises:
        MalformedForm: it has no boundary, or one that cannot stand in a header.
    """
    match = _BOUNDARY.search(content_type)
    boundary = (match[1] or match[2]) if match is not None else ""
    if not boundary or not (boundary.isascii() and boundary.isprintable()):
        raise MalformedForm("its content type has no boundary of printable characters")
    return f'multipart/form-data; boundary="{boundary}"'


def text_fields(body: bytes, content_type: str, names: frozenset[str]) -> dict[str, str]:
    """Return the wanted fields that the form has.

    Raises:
        MalformedForm: no boundary, no end, too many parts, or a wanted field that is too long, no UTF-8 or repeated.
    """
    found: dict[str, str] = {}
    for head, start, end in _parts(body, content_type):
        name = _name_of(head)
        if name not in names:
            continue
        if name in found:
            raise MalformedForm(f"'{name}' occurs more than once", name)
        if end - start > MAX_FIELD_BYTES:
            raise MalformedForm(f"'{name}' has more than {MAX_FIELD_BYTES} bytes", name)
        try:
            found[name] = body[start:end].decode()
        except UnicodeDecodeError as error:
            raise MalformedForm(f"'{name}' is not UTF-8", name) from error
    return found


def _parts(body: bytes, content_type: str) -> list[tuple[bytes, int, int]]:
    """Return each part's headers, and where in the body its content starts and ends."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise MalformedForm("its content type has no boundary")
    mark = b"--" + (match[1] or match[2]).encode("latin-1", "replace")
    if not body.startswith(mark):
        raise MalformedForm("it does not start with its boundary")
    parts: list[tuple[bytes, int, int]] = []
    position = len(mark)
    while not body.startswith(b"--", position):
        head_end = body.find(b"\r\n\r\n", position, position + MAX_PART_HEAD_BYTES)
        end = body.find(b"\r\n" + mark, head_end + 2) if head_end >= 0 else -1
        if end < 0 or len(parts) == MAX_PARTS:
            raise MalformedForm(f"part {len(parts) + 1} has no end, too long a head, or is one too many")
        parts.append((body[position:head_end].lstrip(b"\r\n"), head_end + 4, max(head_end + 4, end)))
        position = end + 2 + len(mark)
    return parts


def _name_of(head: bytes) -> str | None:
    disposition = _DISPOSITION.search(head)
    name = _NAME.search(disposition[1]) if disposition else None
    return (name[1] if name[1] is not None else name[2]).decode("utf-8", "replace") if name else None
