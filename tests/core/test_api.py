"""The schema: defaults, bounds, quantities, refused flags, and what makes a new process necessary."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from basert_fleet.core.api import (
    API_VERSION,
    FLAGS_OF_THE_FLEET,
    UNSAFE_FLAGS,
    BasertPool,
    BasertWorker,
    ChatMode,
    format_quantity,
    parse_quantity,
    template_hash,
    unsafe_flags,
)
from basert_fleet.core.plan import NodeView, plan


def pool(**spec: Any) -> BasertPool:
    """The smallest pool, with some of its spec given."""
    model = {"name": "qwen", "path": "/models/qwen.base"}
    return BasertPool.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "BasertPool",
            "metadata": {"name": "qwen"},
            "spec": {"model": model, **spec},
        }
    )


def refusal(**spec: Any) -> str:
    """What the schema says against a spec."""
    with pytest.raises(ValidationError) as caught:
        pool(**spec)
    return str(caught.value)


def test_a_pool_needs_only_a_model() -> None:
    """What the design calls a default holds when a pool names nothing but its model."""
    written = json.loads(pool().model_dump_json(by_alias=True))["spec"]
    assert written["replicas"] == 1
    assert written["server"] == {
        "allowUnsafeFlags": False, "command": ["basert-serve"], "args": [], "env": [],
        "maxContext": 4096, "requestTimeoutSeconds": 600, "chat": "native", "chatTemplate": None, "toolDialect": "auto",
    }  # fmt: skip
    assert written["isolation"] == {
        "level": "verify", "requireSlots": True, "settleSeconds": 10,
        "drift": {"action": "recycle", "toleranceTokens": 2},
        "canary": {"profile": "toolCall", "everyRequests": 50, "everySeconds": 300},
    }  # fmt: skip
    assert written["delivery"] == {"verify": "toolCalls", "maxAttempts": 3}
    assert written["queue"] == {"maxRequests": 1000, "maxBytes": 256 * 1024**2, "maxWaitSeconds": 300}
    assert written["update"] == {"maxUnavailable": 1}


@pytest.mark.parametrize("kind", [BasertPool, BasertWorker])
def test_every_setting_is_described(kind: type[BaseModel]) -> None:
    """Each setting tells an operator what it does: the docs and the CRD have nothing else to say it with."""
    definitions = kind.model_json_schema()["$defs"]
    for model in definitions.values():
        for name, setting in model.get("properties", {}).items():
            told = definitions[setting["$ref"].rpartition("/")[2]] if "$ref" in setting else setting
            assert told.get("description"), f"{model['title']}.{name}"


def test_documents_survive_the_wire() -> None:
    """A worker read back from its JSON is the worker that was written, quantities included."""
    worker = plan([pool(resources={"memory": "24Gi"})], [NodeView("mac", None, connected=True)], []).workers[0]
    assert BasertWorker.model_validate_json(worker.model_dump_json(by_alias=True)) == worker


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": "3"}, {"replicas": True}, {"replicas": -1}, {"replicas": 1001},
        {"isolation": {"requireSlots": "yes"}}, {"isolation": {"level": "fresh"}},
        {"queue": {"maxRequests": 0}}, {"update": {"maxUnavailable": 0}}, {"resources": {"memory": 0}},
        {"autoscaling": {}}, {"server": {"command": []}}, {"server": {"env": [{"name": "1X", "value": ""}]}},
        {"server": {"chat": "raw"}}, {"server": {"chat": "rendered", "toolDialect": "glm"}},
        {"server": {"args": ["a\nb"]}}, {"delivery": {"verify": "some"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_its_bounds_is_refused(spec: dict[str, Any]) -> None:
    """Neither a wrong type, a value out of bounds, nor a setting that nobody honours is taken (C21)."""
    assert "validation error" in refusal(**spec)


@pytest.mark.parametrize("setting", [{"toolDialect": "qwen"}, {"chatTemplate": {"file": "x.jinja"}}], ids=str)
def test_settings_of_rendered_chats_are_refused_where_none_is_rendered(setting: dict[str, Any]) -> None:
    """A template or a dialect that nothing would use is a misunderstanding (C21); a rendered pool takes both."""
    assert "unless server.chat is rendered" in refusal(server=setting)
    assert pool(server=setting | {"chat": "rendered"}).spec.server.chat is ChatMode.RENDERED


@pytest.mark.parametrize("name", ["Qwen", "-qwen", "qwen-", "a" * 41, "", "a.b", "a_b"])
def test_names_are_labels(name: str) -> None:
    """A pool's name must be usable in worker names, host names and labels."""
    with pytest.raises(ValidationError):
        BasertPool.model_validate({**json.loads(pool().model_dump_json(by_alias=True)), "metadata": {"name": name}})


@pytest.mark.parametrize(
    ("text", "size"),
    [("24Gi", 24 * 1024**3), ("1.5Gi", 3 * 512 * 1024**2), ("8G", 8 * 10**9), ("1k", 1000), ("2Ki", 2048), ("7", 7),
     ("0.0000001k", 1), (512, 512)],
)  # fmt: skip
def test_quantities_are_bytes(text: object, size: int) -> None:
    """A quantity means what it means in Kubernetes; a fraction of a byte is rounded up."""
    assert parse_quantity(text) == size


@pytest.mark.parametrize("text", ["24 Gi", "24gi", "24GB", "-1", "1e9", "", "٣Gi", "9" * 5000, True, 1.5, None])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    """A size that could be misread is refused, telling what one looks like."""
    assert "such as 24Gi" in refusal(queue={"maxBytes": text})


@given(size=st.integers(0, 2**60))
def test_written_quantities_read_back(size: int) -> None:
    """What is written for a person stands for exactly the same bytes."""
    assert parse_quantity(format_quantity(size)) == size


@pytest.mark.parametrize("flag", sorted(FLAGS_OF_THE_FLEET))
@pytest.mark.parametrize("place", ["args", "command"])
def test_flags_of_the_fleet_are_refused(flag: str, place: str) -> None:
    """A flag that every worker gets anyway may not be given, in either spelling; the message tells what to do."""
    for words in (["x", flag, "1"], ["x", f"{flag}=1"]):
        message = refusal(server={place: words})
        assert flag in message
        assert FLAGS_OF_THE_FLEET[flag] in message


@pytest.mark.parametrize("flag", sorted(UNSAFE_FLAGS))
@pytest.mark.parametrize("place", ["args", "command"])
def test_unsafe_flags_are_refused_unless_allowed(flag: str, place: str) -> None:
    """A flag that shares state between requests needs an explicit allowUnsafeFlags."""
    for words in (["x", flag], ["x", f"{flag}=8"]):
        assert "allowUnsafeFlags" in refusal(server={place: words})
        pool(server={place: words, "allowUnsafeFlags": True})


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--max-batch-size", "1"], ()),
        (["--max-batch-size=1"], ()),
        (["--max-batch-size", "4"], ("--max-batch-size 4",)),
        (["--max-batch-size=4"], ("--max-batch-size=4",)),
        (["--max-batch-size=many"], ("--max-batch-size=many",)),
        (["--max-batch-size"], ("--max-batch-size",)),
        (["--max-tokens", "64"], ()),
    ],
)
def test_batches_of_more_than_one_are_unsafe(words: list[str], found: tuple[str, ...]) -> None:
    """Only a batch size that is readably 1 is safe."""
    assert unsafe_flags(words) == found


def test_allowing_unsafe_flags_does_not_allow_the_fleets_own() -> None:
    """The port and the key stay the agent's, whatever is allowed."""
    assert "--port" in refusal(server={"args": ["--port=1"], "allowUnsafeFlags": True})


def test_names_and_variables_do_not_repeat() -> None:
    """An alias twice, one that is the model's name, or a variable twice is a slip and not a wish."""
    assert "should not repeat a" in refusal(model={"name": "m", "path": "p", "aliases": ["a", "a"]})
    assert "own name" in refusal(model={"name": "m", "path": "p", "aliases": ["m"]})
    assert "should not repeat X" in refusal(server={"env": [{"name": "X", "value": "1"}] * 2})


def test_a_path_that_looks_like_a_flag_is_refused() -> None:
    """A model path may not smuggle a flag into the command line."""
    assert "take it for a flag" in refusal(model={"name": "m", "path": "--prefix-cache"})


def test_the_template_is_what_a_process_is_started_with() -> None:
    """Path, command line, environment and memory make a new process necessary."""
    changes: list[dict[str, Any]] = [
        {"model": {"name": "qwen", "path": "/other"}},
        {"server": {"command": ["basert", "serve"]}},
        {"server": {"args": ["--kv-bits", "8"]}},
        {"server": {"env": [{"name": "X", "value": "1"}]}},
        {"server": {"maxContext": 8192}},
        {"server": {"requestTimeoutSeconds": 60}},
        {"resources": {"memory": "8Gi"}},
    ]
    hashes = [template_hash(pool(**spec).spec) for spec in [{}, *changes]]
    assert len(set(hashes)) == len(hashes)


def test_the_template_leaves_out_what_a_process_takes_as_it_is() -> None:
    """Names, isolation, delivery, queue and replicas restart nothing."""
    changed = pool(
        model={"name": "other", "aliases": ["a"], "path": "/models/qwen.base"},
        isolation={"level": "scrub"},
        delivery={"verify": "full"},
        queue={"maxRequests": 1},
        server={"allowUnsafeFlags": True},
        replicas=3,
    )
    assert template_hash(changed.spec) == template_hash(pool().spec)


def test_the_template_is_stable() -> None:
    """The hash is part of what agents remember: the same spec must give it in every version, and on every machine."""
    assert template_hash(pool().spec) == "af7d7181d73d"
    worker = plan([pool()], [NodeView("mac", None, connected=True)], []).workers[0]
    assert template_hash(worker.spec) == worker.spec.template
    rendered = [{"chat": "rendered"}, {"chat": "rendered", "toolDialect": "qwen"}]
    assert len({template_hash(pool(server=server).spec) for server in [{}, *rendered]}) == 3
