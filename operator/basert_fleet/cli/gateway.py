"""`basert-fleet gateway FILE`: the endpoint and the queue of a fleet whose agents dial in from other machines."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from basert_fleet.agent.state import held
from basert_fleet.cli.agents_port import (
    AgentsPort,
    AgentsPortSettings,
    add_agents_port_arguments,
    agents_port_settings,
)
from basert_fleet.cli.endpoint import (
    DRAIN_SECONDS,
    STOPPING,
    EndpointSettings,
    FleetEndpoint,
    add_endpoint_arguments,
    endpoint_settings,
    name_of_state,
)
from basert_fleet.cli.kept import KeptWorkers
from basert_fleet.cli.process import run_until_signal, state_home
from basert_fleet.cli.tokens import warn_if_exposed
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.gateway.roster import Beginnings
from basert_fleet.telemetry.logs import FleetLog
from basert_fleet.wire.dialling import LONGEST_PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from basert_fleet.cli.exits import Exit
    from basert_fleet.cli.signals import Interrupts
    from basert_fleet.telemetry.line_sink import LineSink

SUMMARY = "serve a fleet's endpoint; agents on other machines dial in"
DESCRIPTION = """\
Serves the pools of FILE (BasertPool documents) on one OpenAI-compatible endpoint, with the workers of the agents that
dial in (`basert-fleet agent`). Changes of FILE, of the keys and of the agents' tokens take effect while it runs. The
first SIGTERM or Ctrl-C lets running requests finish (at most a minute), a second one stops at once; workers run on.
"""
ARRIVAL_SECONDS = 2 * LONGEST_PAUSE_SECONDS
"""Every agent dials at least once within half of it; the other half is for what it has to say."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one gateway runs with."""

    endpoint: EndpointSettings
    agents: AgentsPortSettings
    state_dir: Path
    arrival_seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_endpoint_arguments(parser)
    add_agents_port_arguments(parser)
    parser.add_argument(
        "--wait-for-agents",
        metavar="SECONDS",
        type=seconds,
        default=ARRIVAL_SECONDS,
        help="after its start, how long no worker is placed that was not there before, so that the first agent to dial "
        "does not get all of them (default %(default)g: agents dial at least twice in that time)",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="lock and last plan (default ~/.local/state/basert-fleet/gateway-NAME-HASH of FILE)",
    )


def run(args: argparse.Namespace) -> Exit:
    """Run the command."""

    def prepare(lines: LineSink) -> Callable[[Interrupts], Awaitable[bool]]:
        settings = Settings(
            endpoint=endpoint_settings(args),
            agents=agents_port_settings(args),
            state_dir=args.state_dir or state_home(f"gateway-{name_of_state(args.file)}"),
            arrival_seconds=args.wait_for_agents,
        )
        warn_if_exposed(args.agent_token_file, lines.say)
        return lambda interrupts: serve(settings, interrupts, lines)

    return run_until_signal(prepare)


async def serve(settings: Settings, interrupts: Interrupts, lines: LineSink) -> bool:
    """Run the gateway until the first signal, then drain; say whether all requests got their answer in time.

    The plan is made before the first agent can dial: to one that came earlier, no pool would mean no worker.

    Raises:
        StateDirectoryHeld: another gateway runs on the state directory.
        StateUnusable: the state directory cannot be used.
        ListenFailed: a port cannot be listened on.
    """
    with held(settings.state_dir):
        kept = KeptWorkers(settings.state_dir / "plan.json", lines.say)
        beginnings = Beginnings(plan=kept.load(), arrival_seconds=settings.arrival_seconds, keep=kept.save)
        fleet = Fleet(FleetLog(lines), beginnings=beginnings)
        lines.on_dropped.append(fleet.metrics.log_lines_dropped.inc)
        endpoint = FleetEndpoint(settings.endpoint, fleet, lines.say)
        agents = AgentsPort(settings.agents, fleet, lines.say)
        if settings.agents.token_file is not None:
            endpoint.follow(settings.agents.token_file, agents.take_tokens, "The agents' tokens stay as they were.")
        endpoint.on_look.append(agents.look)
        try:
            fleet.apply(settings.endpoint.fleet_file.first)
            async with endpoint.listening(), agents.listening():
                await endpoint.run_until(interrupts.stop)
                lines.say(STOPPING)
                return bool(await interrupts.unless_at_once(fleet.drain(DRAIN_SECONDS)))
        finally:
            fleet.close()


def seconds(text: str) -> float:
    """Read a span; an argparse type.

    Raises:
        argparse.ArgumentTypeError: it is no number, or less than 0.
    """
    try:
        span = float(text)
    except ValueError:
        span = -1.0
    if not 0 <= span < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return span
