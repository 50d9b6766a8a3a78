"""Which chat template a model has: read from the files beside it, once for each process that is started.

Where they are is Hugging Face's convention: `chat_template.jinja`, or else `chat_template` in `tokenizer_config.json`,
a text or a list of named ones. A pool may name another file instead; the model's special tokens are used all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from basert_fleet.core.api import ModelSpec, ServerSpec
from basert_fleet.core.errors import FleetError
from basert_fleet.engine.chat_template import ChatTemplate, TemplateInvalid

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
TOOL_USE, DEFAULT = "tool_use", "default"
"""The names that transformers knows in a list of templates."""
MAX_FILE_BYTES = 64 * 1024**2
"""Chosen: a tokenizer_config.json lists added tokens and may have some megabytes; a model's weights are no template."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateMissing(FleetError):
    """A pool is to render chats, and no usable template was found where it says."""

    code = "template_missing"


@dataclass(frozen=True, slots=True)
class ModelTemplates:
    """The templates of one model."""

    plain: ChatTemplate
    with_tools: ChatTemplate
    """Often the same."""
    eos_token: str | None
    """The text that ends a turn of the model's, if its configuration tells."""


def load_templates(server: ServerSpec, model: ModelSpec) -> ModelTemplates:
    """Read and compile what the pool's processes render with.

    Raises:
        TemplateMissing: a file is missing, cannot be read or has no template, or its text is none; says which.
    """
    path = Path(model.path)
    folder = path if path.is_dir() else path.parent
    config = _config(folder / CONFIG_FILE)
    tokens = _special_tokens(config)
    own = None if server.chat_template is None else Path(server.chat_template.file)
    beside = folder / TEMPLATE_FILE
    if own is not None or beside.is_file():
        file = own or beside
        template = _compiled(_text(file), tokens, file)
        return ModelTemplates(template, template, tokens.get("eos_token"))
    named = _named_templates(config, folder)
    plain = _compiled(named[DEFAULT], tokens, folder / CONFIG_FILE)
    tool_use = named.get(TOOL_USE)
    with_tools = plain if tool_use is None else _compiled(tool_use, tokens, folder / CONFIG_FILE)
    return ModelTemplates(plain, with_tools, tokens.get("eos_token"))


def _named_templates(config: Mapping[str, Any], folder: Path) -> Mapping[str, str]:
    """Return the configuration's templates by name; a single one is the default."""
    found = config.get("chat_template")
    if isinstance(found, str):
        return {DEFAULT: found}
    entries = found if isinstance(found, list) else ()
    named = {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }
    if DEFAULT not in named:
        raise TemplateMissing(
            f"server.chat: rendered needs the model's chat template, and {folder} has neither {TEMPLATE_FILE} nor a "
            f"chat_template in {CONFIG_FILE}. Put one there, or name one with server.chatTemplate.file."
        )
    return named


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that a template may name; they are texts, or objects that hold one."""
    values = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _config(file: Path) -> Mapping[str, Any]:
    """Return the tokenizer's configuration, empty if there is none."""
    if not file.is_file():
        return {}
    try:
        config: dict[str, Any] = msgspec.json.decode(_text(file).encode(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TemplateMissing(f"{file} is not the JSON object of a tokenizer's configuration: {error}.") from error
    return config


def _compiled(source: str, tokens: Mapping[str, str], file: Path) -> ChatTemplate:
    try:
        return ChatTemplate(source, tokens)
    except TemplateInvalid as error:
        raise TemplateMissing(f"The chat template in {file} is no Jinja template: {error}.") from error


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise TemplateMissing(f"{file} has more than {MAX_FILE_BYTES} bytes: it is no chat template.")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateMissing(
            f"The chat template of server.chat: rendered cannot be read from {file}: {error}"
        ) from error
