"""One table of errors: complete, well-formed, and told in the docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from basert_fleet.core.delivery import VerifyMode
from basert_fleet.core.dispatch import Refusal
from basert_fleet.gateway.errors import ERRORS, Code, Failure

DOCS = (Path(__file__).parents[2] / "docs" / "http.md").read_text()


@pytest.mark.parametrize("code", Code)
def test_every_code_is_in_the_table_and_the_docs(code):
    """Status, type and retry of the docs are those of the table."""
    row = ERRORS[code]
    assert f"| `{code}` | {row.status} | `{row.type}` | {'yes' if row.retry else 'no'} |" in DOCS


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_of_a_queue_has_a_code(refusal):
    """Whatever dispatch refuses with can be told to a client."""
    assert Code(refusal.value) in ERRORS


def test_an_error_has_openais_shape():
    """Body and event carry the same four fields; only what may be retried lacks x-should-retry."""
    failure = Failure(Code.QUEUE_FULL, 'the "queue"\nis full', retry_after_seconds=1.2)
    told = {"message": 'the "queue"\nis full', "type": "rate_limit_error", "param": None, "code": "queue_full"}
    assert json.loads(failure.body()) == {"error": told}
    assert failure.event() == b"data: " + failure.body() + b"\n\n"
    assert b"\n" not in failure.body()
    assert failure.headers() == [(b"content-type", b"application/json"), (b"retry-after", b"2")]
    assert (b"x-should-retry", b"false") in Failure(Code.WORKER_LOST, "").headers()


def test_the_docs_name_every_verify_mode():
    """What x-basert-verify takes is what the docs say."""
    assert ", ".join(f"`{mode}`" for mode in VerifyMode) in DOCS
