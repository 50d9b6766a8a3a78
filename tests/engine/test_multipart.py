"""The one text field we read of a transcription's form."""

from __future__ import annotations

import pytest

from basert_fleet.engine.multipart import MAX_FIELD_BYTES, MAX_PARTS, MalformedForm, canonical
from basert_fleet.engine.request import InvalidRequest, Peek, peek, prepare

FORM = 'multipart/form-data; boundary="b0"'
FILE = b'Content-Disposition: form-data; name="file"; filename="model.wav"\r\nContent-Type: audio/wav\r\n\r\n'


def form(*parts, end=b"--b0--\r\n"):
    """Return a form of these parts, each with its own head."""
    return b"".join(b"--b0\r\n" + part + b"\r\n" for part in parts) + end


def text(name, value):
    """Return a text part."""
    return b'Content-Disposition: form-data; name="' + name + b'"\r\n\r\n' + value


def test_model_is_found_among_files():
    """A field is found by its own name, whatever a file beside it is called or contains."""
    body = form(FILE + b'\x00--b0\r\n\r\nname="model"\xff', text(b"model", "wispé".encode()), text(b"language", b"en"))
    assert peek(body, FORM) == Peek("wispé", stream=False)
    unquoted = form(b"content-disposition: form-data;name=model\r\n\r\nm")
    assert peek(unquoted, "Multipart/Form-Data;boundary=b0").model == "m"


def test_form_goes_to_the_engine_as_it_came():
    """Nothing is spliced into a form."""
    body = form(FILE + b"RIFF", text(b"model", b"m"), text(b"stream", b"true"))
    prepared = prepare("/v1/audio/transcriptions", body, "r", FORM)
    assert (prepared.body, prepared.stream, prepared.expected_prompt_tokens) == (body, False, None)


def test_form_without_model_names_none():
    """A field that is missing is the engine's to miss."""
    assert peek(form(FILE + b"RIFF"), FORM).model is None
    assert peek(b"--b0--\r\n", FORM).model is None


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(text(b"model", b"m")), "multipart/form-data"),
        (form(text(b"model", b"m")), "multipart/form-data; boundary=other"),
        (form(text(b"model", b"a"), text(b"model", b"b")), FORM),
        (form(text(b"model", b"\xff")), FORM),
        (form(text(b"model", b"m" * (MAX_FIELD_BYTES + 1))), FORM),
        (form(text(b"model", b"m"), end=b""), FORM),
        (form(*[text(b"x", b"m")] * (MAX_PARTS + 1)), FORM),
        (form(b"X-Long: " + b"x" * 10_000 + b"\r\n\r\nm"), FORM),
        (b"", FORM),
        (b"{}", FORM),
    ],
)
def test_malformed_form_is_refused(body, content_type):
    """A form that could be read in two ways, or not at all, is an error about the request."""
    with pytest.raises(InvalidRequest):
        peek(body, content_type)
    with pytest.raises(InvalidRequest):
        prepare("/v1/audio/transcriptions", body, "r", content_type)


@pytest.mark.parametrize(
    "given",
    [
        'multipart/form-data;\tboundary=b; charset="\xa0"',
        "multipart/form-data; boundary=b",
        'Multipart/Form-Data;boundary="b"',
    ],
)
def test_a_forms_content_type_is_written_anew(given):
    """Nothing that a client wrote around the boundary reaches a header line of ours."""
    assert canonical(given) == 'multipart/form-data; boundary="b"'


@pytest.mark.parametrize("given", ["multipart/form-data", "multipart/form-data; boundary=\xa0\xa0"])
def test_a_boundary_that_no_header_can_hold_is_refused(given):
    """Such a form cannot be forwarded."""
    with pytest.raises(MalformedForm):
        canonical(given)
