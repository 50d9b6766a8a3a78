"""Which template and which tokens a model's files give, and what is said where they give none."""

from __future__ import annotations

import json

import pytest

from basert_fleet.core.api import ModelSpec, ServerSpec
from basert_fleet.engine import template_files
from basert_fleet.engine.template_files import TemplateMissing, load_templates

CONFIG = {
    "chat_template": "configured{{ bos_token }}{{ eos_token }}",
    "bos_token": None,
    "eos_token": {"content": "<|im_end|>", "lstrip": False},
    "pad_token": "<pad>",
    "added_tokens_decoder": {"1": {"content": "x"}},
}


def load(path, **server):
    """Load the templates of a pool whose model is at this path."""
    spec = ServerSpec.model_validate({"chat": "rendered", **server})
    return load_templates(spec, ModelSpec(name="m", path=str(path)))


def configure(folder, **changes):
    """Write a tokenizer's configuration."""
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG | changes))


def test_a_template_of_its_own_goes_before_the_configuration(tmp_path):
    """chat_template.jinja is the newer convention; tokens come from the configuration all the same."""
    configure(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("own{{ eos_token }}{{ pad_token }}")
    loaded = load(tmp_path)
    assert loaded.plain.render({}) == "own<|im_end|><pad>"
    assert loaded.with_tools is loaded.plain
    assert loaded.eos_token == "<|im_end|>"


def test_the_configurations_template_is_used_without_one(tmp_path):
    """A token that is null is nothing, and not the text `None`. The model may be a file in that folder."""
    configure(tmp_path)
    (tmp_path / "model.base").touch()
    assert load(tmp_path).plain.render({}) == "configured<|im_end|>"
    assert load(tmp_path / "model.base").plain.render({}) == "configured<|im_end|>"


def test_one_of_several_is_for_tools(tmp_path):
    """A list of named templates has one for requests with tools, as transformers chooses it."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": "rag"}]
    configure(tmp_path, chat_template=named)
    assert (load(tmp_path).plain.render({}), load(tmp_path).with_tools.render({})) == ("plain", "tools")


def test_a_pool_may_name_another_file(tmp_path):
    """server.chatTemplate.file goes before all that is beside the model."""
    configure(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("own")
    other = tmp_path / "other.jinja"
    other.write_text("other{{ eos_token }}")
    assert load(tmp_path, chatTemplate={"file": str(other)}).plain.render({}) == "other<|im_end|>"
    assert load("nowhere/model.base", chatTemplate={"file": str(other)}).eos_token is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has neither chat_template.jinja nor a chat_template"),
        ({"tokenizer_config.json": b"{}"}, "server.chatTemplate.file"),
        ({"tokenizer_config.json": b'{"chat_template": [{"name": "tool_use", "template": "x"}]}'}, "has neither"),
        ({"tokenizer_config.json": b'{"chat_template": 3}'}, "has neither"),
        ({"tokenizer_config.json": b"[]"}, "is not the JSON object"),
        ({"tokenizer_config.json": b"\xff"}, "cannot be read"),
        ({"chat_template.jinja": b"\n{% if %}"}, "is no Jinja template: line 2"),
        ({"chat_template.jinja": b"\xff"}, "cannot be read from"),
        ({"chat_template.jinja": b"x" * 2000}, "more than 1000 bytes"),
    ],
)
def test_an_operator_is_told_what_is_missing(tmp_path, monkeypatch, files, said):
    """The message names the file and, where there is none, what to do."""
    monkeypatch.setattr(template_files, "MAX_FILE_BYTES", 1000)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(TemplateMissing, match=said) as missing:
        load(tmp_path)
    assert str(tmp_path) in str(missing.value)


def test_a_named_file_that_is_missing_is_told(tmp_path):
    """It is never replaced by another template."""
    configure(tmp_path)
    with pytest.raises(TemplateMissing, match=r"other\.jinja"):
        load(tmp_path, chatTemplate={"file": str(tmp_path / "other.jinja")})
