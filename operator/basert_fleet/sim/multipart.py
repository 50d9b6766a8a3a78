"""The one file of a multipart/form-data body, as /v1/audio/transcriptions gets it."""

from __future__ import annotations

import re

from basert_fleet.sim.errors import BadRequest

_BOUNDARY = re.compile(r'multipart/form-data;.*\bboundary="?([^";]+)"?', re.IGNORECASE)


def uploaded_file(content_type: str, body: bytes) -> bytes:
    """Return the bytes of the part that is named `file`; refuse a body without one."""
    boundary = _BOUNDARY.match(content_type)
    if boundary is None:
        raise BadRequest("Expected a multipart/form-data body with a 'file' part.", "file")
    for part in body.split(b"--" + boundary[1].encode("latin-1"))[1:]:
        head, end_of_head, content = part.partition(b"\r\n\r\n")
        if end_of_head and b'name="file"' in head:
            return content.removesuffix(b"\r\n")
    raise BadRequest("The multipart body has no part named 'file'.", "file")
