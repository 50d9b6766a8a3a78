"""Published chat templates, held to the prompts that transformers makes of the same conversation.

Their texts are not ours to keep, so this runs where somebody has them: in a folder named by CHAT_TEMPLATES, in files of
any name. A template is known by its hash, and so is its prompt. Those below were compared, character by character, with
what `render_jinja_template` of transformers 5.24 returns; the texts are those in the end-to-end tests of Hugging Face's
JavaScript implementation (@huggingface/jinja), under each model's name.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from basert_fleet.engine.chat_template import ChatTemplate
from basert_fleet.engine.dialects import Dialect, dialect_of
from support.weather_chat import CONVERSATION, TOKENS

FOLDER = os.environ.get("CHAT_TEMPLATES")
KNOWN = [
    ("Qwen2.5-7B-Instruct", "cd8e9439f0570856", "0b32ce03538619f7", Dialect.HERMES),
    ("Qwen3-0.6B", "87a2728cb8dc9fe4", "c407b1f7cea51dc2", Dialect.HERMES),
    ("Qwen3.5-4B", "e170ef631e66ca85", "d7ed4358cd76ac3f", Dialect.QWEN),
    ("Mistral-7B-Instruct-v0.3", "225aaeb28812e3ea", "b86acac0087c4f1e", None),
    ("Qwen1.5-72B-Chat", "7a2fad4301dcce93", "656d1dcfe3cd48f6", None),
]
"""A model, the hashes of its template and of the prompt, and the dialect that the template teaches."""


def short_hash(text: str) -> str:
    """Return the beginning of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.skipif(FOLDER is None, reason="CHAT_TEMPLATES names no folder of published chat templates")
@pytest.mark.parametrize(("model", "template", "prompt", "dialect"), KNOWN, ids=[known[0] for known in KNOWN])
def test_published_templates_make_the_prompt_that_transformers_makes(model, template, prompt, dialect):
    """To the character, tools, several calls and their responses included."""
    sources = [file.read_text() for file in Path(FOLDER or "").iterdir() if file.is_file()]
    source = next((source for source in sources if short_hash(source) == template), None)
    if source is None:
        pytest.skip(f"no file has the template of {model}")
    assert short_hash(ChatTemplate(source, TOKENS).render(CONVERSATION)) == prompt
    assert dialect_of(source) is dialect
