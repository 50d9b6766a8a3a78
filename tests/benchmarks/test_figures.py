"""From measurements to the table, without measuring anything."""

from __future__ import annotations

import pytest
from benchmarks.engines import Window
from benchmarks.figures import (
    BEGIN,
    END,
    Bound,
    Goal,
    Line,
    NoMarkers,
    Rounds,
    added_ms,
    behind_us_per_request,
    between_markers,
    front_us_per_request,
    handoff_p99_ms,
    own_share,
    requests_per_front_cpu_second,
    table,
)
from benchmarks.load import Seen
from benchmarks.measure import Measurement


def seen(requests: int = 1000, p50: float = 0.0) -> Seen:
    """Return what clients saw in two seconds."""
    return Seen(seconds=2.0, requests=requests, events=0, latency_p50_us=p50, latency_p99_us=0.0)


def measured(requests: int = 1000, *, front: float = 0.1, behind: float = 0.0, p50: float = 0.0) -> Measurement:
    """Return a measurement of a gateway and an agent; four of its hundred generations were the fleet's own."""
    return Measurement(
        seen=seen(requests, p50),
        window=Window(
            slots=8,
            running=0,
            generations=100,
            users=96,
            overlaps=0,
            busy=0.5,
            handoff_p50_us=300.0,
            handoff_p99_us=1500.0,
        ),
        cpu_seconds={"gateway": front, "agent": behind},
    )


def test_cpu_is_told_apart_by_role() -> None:
    """The gateway's figures hold only its own CPU; the agent's is told beside it."""
    both = measured(1000, front=0.1, behind=0.05)
    assert front_us_per_request(both) == pytest.approx(100)
    assert behind_us_per_request(both) == pytest.approx(50)
    assert requests_per_front_cpu_second(both) == pytest.approx(10_000)


def test_a_line_holds_the_median_of_its_rounds() -> None:
    """One disturbed round changes nothing."""
    rounds = Rounds([measured(front=0.1)] * 3, [measured(front=0.2), measured(front=9.0), measured(front=0.2)])
    line = rounds.line(front_us_per_request, "CPU", 8, "µs")
    assert (line.haproxy, line.fleet, line.ratio) == pytest.approx((100, 200, 2))


def test_a_goal_limits_the_ratio() -> None:
    """With HAProxy's figure at hand, a goal is about the ratio."""
    line = Line(what="Handoff", slots=8, unit="ms", haproxy=0.4, fleet=0.8, goal=Goal(Bound.AT_MOST, 2))
    assert line.met
    assert Line(what="Busy", slots=8, unit="", haproxy=1.0, fleet=0.9, goal=Goal(Bound.AT_LEAST, 0.995)).met is False


def test_a_goal_may_limit_the_figure_itself() -> None:
    """Memory and latency are asked for in megabytes and milliseconds, whatever HAProxy needs."""
    line = Line(what="Memory", slots=8, unit="MB", haproxy=20, fleet=100, goal=Goal(Bound.AT_MOST, 120, absolute=True))
    assert line.met


def test_without_a_goal_nothing_is_met_or_missed() -> None:
    """A figure may be told for its own sake."""
    assert Line(what="Chunks", slots=8, unit="1/s", haproxy=1, fleet=1).met is None


def test_added_latency_is_the_difference_of_medians() -> None:
    """What an engine takes itself is not the gateway's doing."""
    direct = [seen(p50=20_000), seen(p50=21_000), seen(p50=20_500)]
    through = [measured(p50=21_000), measured(p50=21_500), measured(p50=22_000)]
    assert added_ms(direct, through, lambda each: each.latency_p50_us) == pytest.approx(1.0)


def test_canaries_are_told_apart_from_users_generations() -> None:
    """The share that the fleet takes for itself is known."""
    assert own_share([measured()]) == pytest.approx(0.04)


def test_handoff_is_told_in_milliseconds() -> None:
    """The engines tell microseconds, the table milliseconds."""
    assert handoff_p99_ms(measured()) == pytest.approx(1.5)


def test_the_table_says_which_goals_are_missed() -> None:
    """A reader sees a missed goal without doing sums; numbers have three digits."""
    text = table(
        [
            Line(what="Busy", slots=1000, unit="share", haproxy=0.9912, fleet=0.5, goal=Goal(Bound.AT_LEAST, 0.995)),
            Line(what="Throughput", slots=8, unit="1/s", haproxy=None, fleet=12_345.6),
        ]
    )
    assert "| Busy, share | 1,000 | 0.991 | 0.500 | 0.504 | ≥ 0.995 × HAProxy: **not met** |" in text
    assert "| Throughput, 1/s | 8 |  | 12,346 |  |  |" in text


def test_only_the_measured_part_of_the_page_changes() -> None:
    """What people wrote around the markers stays."""
    page = f"# Performance\n{BEGIN}\nold\n{END}\nThe rest.\n"
    assert between_markers(page, "new\n") == f"# Performance\n{BEGIN}\nnew\n{END}\nThe rest.\n"


def test_a_page_without_markers_is_refused() -> None:
    """Figures never end up in an unknown place."""
    with pytest.raises(NoMarkers):
        between_markers("# Performance\n", "new")
