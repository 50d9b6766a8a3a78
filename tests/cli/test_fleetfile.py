"""A fleet file is read as kubectl would read it, and whatever is wrong with it is told at once, with its line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.cli.fleetfile import FleetFileRefused, read_fleet_file, read_pools
from basert_fleet.core.api import IsolationLevel
from basert_fleet.core.documents import path_text
from basert_fleet.core.yaml_source import DEEPEST_NESTING, LARGEST_FILE_BYTES

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))

POOL = """\
apiVersion: fleet.basert.dev/v1alpha1
kind: BasertPool
metadata:
  name: {name}
spec:
  model:
    name: {name}
    path: /models/{name}.base
"""


def a_pool(name: str = "qwen", more: str = "") -> str:
    """One document; `more` continues its spec."""
    return POOL.format(name=name) + more


def problems(text: str | bytes) -> list[str]:
    """What is told of a file: its lines below the first one."""
    with pytest.raises(FleetFileRefused) as caught:
        read_pools(text.encode() if isinstance(text, str) else text, "fleet.yaml")
    return str(caught.value).splitlines()[1:]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_right(path: Path) -> None:
    """Every example that we ship can be used as it is."""
    assert read_fleet_file(path.read_bytes(), path.name).pools


def test_a_file_holds_many_pools() -> None:
    """Pools come in the order of the file; empty documents count for nothing."""
    text = f"---\n{a_pool('a')}---\n---\n{a_pool('b', '  isolation: {level: scrub}')}"
    pools = read_pools(text.encode(), "f")
    assert [pool.metadata.name for pool in pools] == ["a", "b"]
    assert pools[1].spec.isolation.level is IsolationLevel.SCRUB


def test_anchors_may_be_used() -> None:
    """An alias stands for what it names, as in any YAML."""
    text = a_pool(more="  server: {args: &args [--kv-bits, '8']}\n") + "---\n" + a_pool("b", "  server: {args: []}\n")
    assert read_pools(text.encode(), "f")[0].spec.server.args == ("--kv-bits", "8")


def test_all_problems_are_told_at_once() -> None:
    """Each problem of each document is told, in the order of the lines, with file:line and the field."""
    text = a_pool("a", "  replicas: -1\n  queue:\n    maxRequests: 0\n") + "---\nkind: Deployment\n"
    assert problems(text) == [
        "fleet.yaml:9: spec.replicas: should be greater than or equal to 0, found -1",
        "fleet.yaml:11: spec.queue.maxRequests: should be greater than or equal to 1, found 0",
        'fleet.yaml:13: kind: should be BasertPool, found "Deployment"',
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("  queue: {maxRequest: 1}\n", "spec.queue.maxRequest: unknown field; did you mean maxRequests?"),
        ("  queue: {max_requests: 1}\n", "spec.queue.max_requests: unknown field; did you mean maxRequests?"),
        ("  update: {zzz: 1}\n", "spec.update.zzz: unknown field; known here: maxUnavailable"),
        ("  server: {env: [{name: A, valu: x}]}\n", "spec.server.env[0].valu: unknown field; did you mean value?"),
        ("  replicas: '3'\n", 'spec.replicas: should be a whole number, found "3"'),
        ("  isolation: [a]\n", "spec.isolation: should be a mapping of fields, found a list"),
        ("  isolation: {requireSlots: 1}\n", "spec.isolation.requireSlots: should be true or false, found 1"),
        ("  server: {args: x}\n", 'spec.server.args: should be a list, found "x"'),
        ("  server: {args: ['--port=1']}\n", "spec.server.args: should not set --port: the agent picks a free port"),
        ("  resources: {memory: 24GB}\n", 'such as 24Gi, 512Mi, 8G or 1048576, found "24GB"'),
        ("  resources: {memory: 2026-01-01}\n", 'such as 24Gi, 512Mi, 8G or 1048576, found "2026-01-01"'),
    ],
)
def test_a_wrong_field_tells_what_is_allowed(more: str, told: str) -> None:
    """A message names the field, what was found, and what would be right; an unknown key its nearest known one."""
    assert told in "\n".join(problems(a_pool(more=more)))


def test_a_missing_field_is_told_where_it_should_be() -> None:
    """The line of a field that is not there is that of what should hold it."""
    text = "apiVersion: fleet.basert.dev/v1alpha1\nkind: BasertPool\nmetadata: {name: a}\nspec:\n  model: {name: a}\n"
    assert problems(text) == ["fleet.yaml:5: spec.model.path: missing"]


def test_what_only_follows_from_a_problem_is_not_told() -> None:
    """A list whose only entry is wrong is not also called too short; an empty one is."""
    assert problems(a_pool(more="  server: {command: [1]}\n")) == [
        "fleet.yaml:9: spec.server.command[0]: should be a string, found 1"
    ]
    assert problems(a_pool(more="  server: {command: []}\n")) == [
        "fleet.yaml:9: spec.server.command: should have at least 1 item, not 0, found a list"
    ]


def test_environment_values_are_not_repeated() -> None:
    """A value that may be a secret is never part of a message."""
    assert problems(a_pool(more="  server: {env: [{name: KEY, value: 12345}]}\n")) == [
        "fleet.yaml:9: spec.server.env[0].value: should be a string, found a number"
    ]


def test_two_pools_need_two_names() -> None:
    """A pool's name, a model's name and each alias may be given once in a file."""
    text = a_pool("a") + "---\n" + a_pool("a")
    assert problems(text) == [
        'fleet.yaml:13: metadata.name: the pool "a" is taken by line 4',
        'fleet.yaml:16: spec.model.name: the model name "a" is taken by line 7',
    ]
    text = a_pool("a") + "    aliases: [gpt]\n---\n" + a_pool("b") + "    aliases: [x, gpt]\n"
    assert problems(text) == ['fleet.yaml:19: spec.model.aliases[1]: the model name "gpt" is taken by line 9']


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "fleet.yaml:1: empty: it should hold at least one document of kind BasertPool"),
        ("---\n---\n# nothing\n", "fleet.yaml:1: empty"),
        ("hello", 'fleet.yaml:1: should be a BasertPool, found "hello"'),
        ("a: [", "fleet.yaml:"),
        ("a: 1\nb: 2\na: 3\n", "fleet.yaml:3: a: given twice, first on line 1"),
        ("x: *nothing", "fleet.yaml:1: not valid YAML: found undefined alias"),
        ("x: &a [*a]", "fleet.yaml:1: x[0]: an alias that contains itself"),
        ("<<: {a: 1}", "fleet.yaml:1: merge keys (<<) are not read; write the fields out"),
        ("\n1: x", "fleet.yaml:2: a key that is not a string; put it in quotes"),
        ("x: 2026-99-99", "fleet.yaml:1: x: cannot be read: month must be in 1..12; put it in quotes if it is text"),
        ("!!python/object:os.system {}", "fleet.yaml:1: the tag !!python/object:os.system is not read"),
        ("x: !!python/name:os.system ''", "fleet.yaml:1: x: the tag !!python/name:os.system does not fit this value"),
        ("x: !!bool x", "fleet.yaml:1: x: the tag !!bool does not fit this value; leave it out"),
        ("x: !!timestamp x", "fleet.yaml:1: x: the tag !!timestamp does not fit this value; leave it out"),
        ("x: !!int", "fleet.yaml:1: x: the tag !!int does not fit this value; leave it out"),
        ("x: !own y", "fleet.yaml:1: x: the tag !own does not fit this value; leave it out"),
        ("? !!str [a]\n: x", "fleet.yaml:1: a key that is not a string; put it in quotes"),
        ("x: 0x" + "f" * 5000, "fleet.yaml:1: x: a number beyond 64 bits; put it in quotes if it is text"),
        ("x: 1" + ":0" * 200 + ".0", "fleet.yaml:1: x: cannot be read: int too large to convert to float"),
        ("x: \x07", "fleet.yaml:1: not valid YAML"),
        (b"ok: 1\nx: \xff", "fleet.yaml:2: not UTF-8: found the byte 0xff"),
        ("[" * (DEEPEST_NESTING + 1), "fleet.yaml:1: nested deeper than 32 levels"),
        ("#" * (LARGEST_FILE_BYTES + 1), "fleet.yaml:1: the file has 1048577 bytes; at most 1048576 are read"),
        ("spec: 1\nkind: Standalone\n", 'fleet.yaml:2: kind: should be BasertPool, found "Standalone"'),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_cannot_be_read_is_told(text: str | bytes, told: str) -> None:
    """A file that holds no documents that we read is refused with its line and a reason."""
    assert problems(text)[0].startswith(told)


def test_a_tag_that_fits_may_be_written() -> None:
    """`!!str` makes a string of what would be a number, and a tag that says what a value is anyway changes nothing."""
    (pool,) = read_pools(
        a_pool(more="  replicas: !!int 2\n  server: {args: !!seq [--kv-bits, !!str 8]}\n").encode(), "f"
    )
    assert (pool.spec.replicas, pool.spec.server.args) == (2, ("--kv-bits", "8"))


def test_aliases_cannot_blow_up_a_file() -> None:
    """A small file whose aliases expand to millions of values is refused (the billion laughs)."""
    levels = ["a0: &a0 [" + ", ".join("x" * 10) + "]"]
    levels += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 9)]
    assert "aliases counted each time" in problems("\n".join(levels))[0]


def test_a_file_of_another_format_does_not_flood_the_terminal() -> None:
    """Only the first problems are told one by one, the rest as a number."""
    text = a_pool(more="".join(f"  k{i}: 1\n" for i in range(80)))
    assert problems(text)[-1] == "... and 30 more"


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_content_causes_a_traceback(content: str | bytes) -> None:
    """Whatever a file holds, it is read or refused."""
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    with contextlib.suppress(FleetFileRefused):
        read_pools(raw, "f")


@given(
    at=st.integers(0, 200), junk=st.sampled_from(["{", "- ", ": ", "\t", "&a ", "*a", "!!int ", "|", "\n  ", "?", "'"])
)
def test_no_slip_causes_a_traceback(at: int, junk: str) -> None:
    """A slip anywhere in a right file leaves it right, or refused with its reasons."""
    text = a_pool(more="  server: {args: [--kv-bits, '8'], env: [{name: X, value: y}]}\n")
    with contextlib.suppress(FleetFileRefused):
        read_pools((text[:at] + junk + text[at:]).encode(), "f")


TAG_NAMES = ("bool", "binary", "float", "int", "map", "null", "omap", "seq", "set", "str", "timestamp", "value")
TAGS = st.sampled_from(["", *(f"!!{tag} " for tag in TAG_NAMES)])
SCALARS = st.sampled_from(
    ["", "x", "yes", "8", "-0", "0x_", "1:00:00.5", "1e9999", ".inf", ".nan", "~", "=", "<<", "2026-01-01",
     "2026-99-99", "2026-01-01T00:00:00-99:99", "'8'", '"\\ud800"', "aGk", "- ", "9" * 5000, "0b" + "1" * 5000, "*a",
     "&a 1"]
)  # fmt: skip
TAGGED = st.builds("{}{}".format, TAGS, SCALARS)
VALUES = (
    TAGGED
    | st.builds("[{}, {}]".format, TAGGED, TAGGED)
    | st.builds("{{? {}{} : {}}}".format, TAGS, st.sampled_from(["name", "[x]", "{}", "5"]), TAGGED)
    | st.builds("{}{}".format, TAGS, st.sampled_from(["[]", "{}", "[x, y]", "{name: x}"]))
)
FIELDS = st.sampled_from(
    ["replicas", "model", "server", "server: {args", "server: {env", "isolation", "isolation: {requireSlots",
     "placement: {nodeSelector", "resources: {memory", "recycle: {maxRequests", "unknown"]
)  # fmt: skip


@given(field=FIELDS, value=VALUES)
def test_no_value_causes_a_traceback(field: str, value: str) -> None:
    """Whatever YAML can write at any field, with whatever tag, it is read or refused."""
    text = a_pool(more=f"  {field}: {value}{'}' * field.count('{')}\n")
    with contextlib.suppress(FleetFileRefused):
        read_pools(text.encode(), "f")


def test_paths_are_written_as_people_write_them() -> None:
    """Keys are joined by dots, positions are in brackets."""
    assert path_text(("spec", "server", "env", 0, "name")) == "spec.server.env[0].name"
