"""What a person is told of the workers: each change that matters, once, and when requests can be sent."""

from __future__ import annotations

from typing import Any

from basert_fleet.cli.progress import Progress
from basert_fleet.core.lifecycle import State
from basert_fleet.wire.messages import WorkerStatus


class Told:
    """A progress and what it told."""

    def __init__(self, attached: tuple[str, ...] = ()) -> None:
        self.lines: list[str] = []
        self.ready: list[str] = []
        self.progress = Progress(self.lines.append, self.ready.append, attached)

    def goes_through(self, *phases: State, worker: str = "qwen-0", message: str = "") -> None:
        for phase in phases:
            self.progress.worker(
                WorkerStatus(worker, "qwen", phase=phase.value, generation=1, template="t", message=message)
            )


def test_a_start_is_told_phase_by_phase() -> None:
    """A person sees that something happens, and when it is done."""
    told = Told()
    told.goes_through(State.STOPPED, State.STARTING, State.WARMING, State.READY)
    assert told.lines == [
        "qwen-0 starts",
        "qwen-0 listens, and is tried out",
        "qwen-0 is ready",
    ]


def test_everyday_canaries_are_not_told() -> None:
    """A worker that is tested between two requests and is ready again is no news."""
    told = Told()
    told.goes_through(State.READY, State.TESTING, State.READY, State.TESTING, State.READY)
    assert told.lines == ["qwen-0 is ready"]


def test_a_failure_is_told_with_its_reason() -> None:
    """The reason that the agent gives is part of the line."""
    told = Told()
    told.goes_through(State.STARTING)
    told.goes_through(State.BACKOFF, message="the process exited with status 1")
    assert told.lines[-1] == "qwen-0 failed, and is tried again soon: the process exited with status 1"


def test_a_reason_is_not_repeated_while_it_stays_the_same() -> None:
    """A worker that cannot start is told with one long line, and then briefly; another reason is news again.

    Each attempt has another port, which makes no other reason of it.
    """
    told = Told()
    for message in ("status 1 on port 1", "status 1 on port 2", "status 2 on port 3"):
        told.goes_through(State.STARTING, State.STOPPING, State.BACKOFF, message=message)
    told.goes_through(State.FATAL, message="status 2 on port 3")
    assert told.lines == [
        "qwen-0 starts", "qwen-0 is being stopped: status 1 on port 1", "qwen-0 failed, and is tried again soon",
        "qwen-0 starts", "qwen-0 is being stopped", "qwen-0 failed, and is tried again soon",
        "qwen-0 starts", "qwen-0 is being stopped: status 2 on port 3", "qwen-0 failed, and is tried again soon",
        "qwen-0 is given up until the fleet file changes",
    ]  # fmt: skip


def test_a_reason_is_news_again_after_the_worker_was_ready() -> None:
    """The same fault an hour later is told with its reason."""
    told = Told()
    for _ in range(2):
        told.goes_through(State.STOPPING, message="drift")
        told.goes_through(State.STARTING, State.READY)
    assert told.lines.count("qwen-0 is being stopped: drift") == 2


def test_the_first_ready_worker_makes_the_fleet_ready() -> None:
    """How to send a request is told once."""
    told = Told()
    told.goes_through(State.READY, State.STOPPING, State.READY)
    told.goes_through(State.READY, worker="qwen-1")
    assert told.ready == ["qwen"]


def test_a_pools_problem_is_told_when_it_comes_and_when_it_goes() -> None:
    """A condition that lasts is told once, not every second."""
    told = Told()
    problem: list[dict[str, Any]] = [{"name": "qwen", "conditions": [{"message": "there is no node"}]}]
    for observed in (problem, problem, [{"name": "qwen", "conditions": []}]):
        told.progress.pools(observed)
    assert told.lines == ["pool qwen: there is no node", "pool qwen: nothing is in its way any more"]


def test_an_attached_server_is_neither_started_nor_stopped() -> None:
    """It runs before the fleet and after it, and one out of service may come back without an edit."""
    told = Told(attached=("qwen-0",))
    told.goes_through(State.STARTING, State.WARMING, State.READY, State.STOPPING)
    told.goes_through(State.FATAL, message="Restart the server")
    told.goes_through(State.STOPPED)
    assert told.lines == [
        "qwen-0 is looked at",
        "qwen-0 answers, and is tried out",
        "qwen-0 is ready",
        "qwen-0 is let go",
        "qwen-0 is out of service: Restart the server",
        "qwen-0 has been let go",
    ]
