"""The command line."""

from __future__ import annotations

import pytest

from basert_fleet.sim.faults import Fault, FaultRule
from basert_fleet.sim.options import model_name, parse

REPORTED = "model.base --host 127.0.0.1 --port 8896 --max-context 262144 --request-timeout 600000"
ALL = (
    "--model a --model b --api-key k --max-tokens 9 --kv-bits 8 --paged-kv --max-batch-size 1 --continuous-batching "
    "--prefix-cache --prefix-cache-file f --rate-limit 5 --idle-timeout 3 --drain-timeout 60 --log-file l --files-dir d"
)


def test_the_reports_command_line_is_understood():
    """As the report starts the real server; the timeout is in milliseconds."""
    options = parse(REPORTED.split())
    assert (options.models, options.port, options.limits.max_context) == (("model.base",), 8896, 262_144)
    assert options.pace.timeout_seconds == 600.0


def test_every_documented_flag_is_accepted():
    """Also those that only tune the real engine."""
    assert parse(ALL.split()).models == ("a", "b")


def test_defaults_are_the_documented_ones():
    """And the bug is off."""
    options = parse(["m"])
    assert (options.host, options.port, options.limits.max_context, options.limits.max_tokens) == (
        "127.0.0.1", 8080, 4096, 2048,
    )  # fmt: skip
    assert not options.bug.enabled
    assert options.pace.batch_seconds == 0


@pytest.mark.parametrize(
    "line",
    [
        "m --unknown",
        "m --por 1",
        "",
        "m --max-context 0",
        "m --sim-counters odd",
        "m --sim-fault explode",
        "m --rate-limit -1",
    ],
)
def test_a_wrong_command_line_exits_with_2(line, capsys):
    """Unknown and abbreviated flags, and values out of range; the message is on stderr."""
    with pytest.raises(SystemExit) as exited:
        parse(line.split())
    assert exited.value.code == 2
    assert capsys.readouterr().err.startswith("basert-sim: ")


def test_faults_may_be_many():
    """`--sim-fault` is repeatable."""
    rules = parse(["m", "--sim-fault", "crash:nth=3", "--sim-fault", "run-on"]).faults.rules
    assert rules == (FaultRule(Fault.CRASH, nth=3), FaultRule(Fault.RUN_ON))


def test_models_are_named_after_their_files():
    """/v1/models shows the file's name without .base."""
    assert model_name("/models/Qwen3.base") == "Qwen3"
