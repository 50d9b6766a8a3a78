"""A body that crashed two workers is refused for a while, and for its own tenant only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.core.refusals import CrashLedger


@pytest.fixture
def ledger() -> CrashLedger:
    """A ledger with room enough and the default ten minutes."""
    return CrashLedger(max_entries=100)


def test_two_workers_make_the_body_refused(ledger: CrashLedger) -> None:
    """One crash may be the worker's own, the second one on another worker is the body's."""
    ledger.crashed("alice", "body", "chat-0", 0)
    assert not ledger.refused("alice", "body", 1)
    ledger.crashed("alice", "body", "chat-1", 2)
    assert ledger.refused("alice", "body", 3)


def test_one_bad_worker_refuses_nobody(ledger: CrashLedger) -> None:
    """A worker that crashes again and again does not make its requests guilty."""
    for now in range(5):
        ledger.crashed("alice", "body", "chat-0", now)
    assert not ledger.refused("alice", "body", 6)


@pytest.mark.parametrize(("tenant", "body"), [("bob", "body"), ("alice", "other")])
def test_others_are_not_refused(ledger: CrashLedger, tenant: str, body: str) -> None:
    """Another tenant's same body, or another body, is not blamed."""
    ledger.crashed("alice", "body", "chat-0", 0)
    ledger.crashed("alice", "body", "chat-1", 0)
    assert not ledger.refused(tenant, body, 1)


def test_a_refusal_ends(ledger: CrashLedger) -> None:
    """Ten minutes after the last crash the body may try again, with a clean record."""
    ledger.crashed("alice", "body", "chat-0", 0)
    ledger.crashed("alice", "body", "chat-1", 300)
    assert ledger.refused("alice", "body", 899)
    assert not ledger.refused("alice", "body", 900)
    ledger.crashed("alice", "body", "chat-2", 901)
    assert not ledger.refused("alice", "body", 902)


def test_the_oldest_entry_makes_room() -> None:
    """A full ledger forgets the body whose last crash is longest ago."""
    ledger = CrashLedger(max_entries=2)
    ledger.crashed("alice", "a", "chat-0", 0)
    ledger.crashed("alice", "b", "chat-0", 1)
    ledger.crashed("alice", "a", "chat-1", 2)
    ledger.crashed("alice", "c", "chat-0", 3)
    ledger.crashed("alice", "b", "chat-1", 4)
    assert not ledger.refused("alice", "b", 5)
    assert len(ledger) == 2


@given(
    crashes=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from("012"), st.integers(0, 400))
    )
)
def test_only_two_crashed_workers_blame_a_body(crashes: list[tuple[str, str, str, int]]) -> None:
    """Whatever the order, memory is bounded and a refused body did crash two workers of late."""
    ledger = CrashLedger(max_entries=3)
    now, seen = 0.0, list[tuple[str, str, str, float]]()
    for tenant, body, worker, pause in crashes:
        now += pause
        ledger.crashed(tenant, body, worker, now)
        seen.append((tenant, body, worker, now))
        assert len(ledger) <= 3
        for who in "ab":
            for what in "xyz":
                mine = [(w, at) for t, b, w, at in seen if (t, b) == (who, what)]
                if ledger.refused(who, what, now):
                    assert len({w for w, _ in mine}) >= 2
                    assert now - mine[-1][1] < 600
