"""Every metric that is exported, defined once: its name, its labels, and what a rise means to whoever reads it.

`metrics` counts by these definitions, `reference` writes docs/metrics.md from them, and dashboards and alerts may name
nothing else (C26). Labels are bounded: pools, nodes and workers come from the fleet's own configuration, engines are
versions that run here; never an id, a key or a client's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "basert_fleet_"


class Kind(StrEnum):
    """How a metric moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric family."""

    kind: Kind
    name: str
    """As queries say it: with the prefix, and for a counter with `_total`."""
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in the unit of its name."""


def _counter(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(Kind.COUNTER, f"{PREFIX}{name}_total", help_text, labels)


def _gauge(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(Kind.GAUGE, PREFIX + name, help_text, labels)


def _histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Definition:
    return Definition(Kind.HISTOGRAM, PREFIX + name, help_text, labels, buckets)


# Chosen: from an idle fleet's answer (some ms) to the longest waits and generations that settings allow by default.
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
# Chosen around the measured handoff of 0.3 ms (median) to 0.8 ms (p99), up to a scrub with its canary.
_HANDOFF_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
# Chosen: the default tolerance is 2 tokens, the drift of the reported fault 128.
_DRIFT_TOKENS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)
_ATTEMPTS = (1.0, 2.0, 3.0, 5.0, 10.0)

REQUESTS = _counter(
    "requests",
    "Requests that got their final answer. `client_error` and `cancelled` are the client's doing, `ok` is served; any "
    "other outcome is an error code and counts against the objective. The pool is empty when no pool was found.",
    "pool", "outcome",
)  # fmt: skip
REQUEST_SECONDS = _histogram(
    "request_seconds",
    "From a request's arrival to its last byte, waiting included. A rise at a steady queue wait means slower engines.",
    _SECONDS, "pool",
)  # fmt: skip
TIME_TO_FIRST_BYTE_SECONDS = _histogram(
    "time_to_first_byte_seconds",
    "From a request's arrival to the first byte of its response. It rises with waiting and with longer prompts.",
    _SECONDS, "pool",
)  # fmt: skip
REQUEST_ATTEMPTS = _histogram(
    "request_attempts",
    "Attempts that a request took until its final answer. Above 1 means workers that crashed or were not judged clean.",
    _ATTEMPTS, "pool",
)  # fmt: skip
QUEUE_WAIT_SECONDS = _histogram(
    "queue_wait_seconds",
    "From a request's arrival to its first accepted lease. A rise means that the pool has too few ready workers.",
    _SECONDS, "pool", "priority",
)  # fmt: skip
LEASES = _counter(
    "leases",
    "Leases that ended, by the judge's word on them and the engine that ran them. `contaminated` is the product "
    "working unless it becomes common: then this engine mixes requests up.",
    "pool", "engine", "verdict", "reason",
)  # fmt: skip
RELEASED = _counter(
    "released",
    "Leases that released a part of this kind to a client, by the verdict on the lease. A contaminated `tool_call` "
    "must never appear; contaminated `text` was streamed before its verdict and followed by an error.",
    "pool", "verdict", "part",
)  # fmt: skip
LEASE_VIOLATIONS = _counter(
    "lease_violations",
    "Times that a slot was about to be held by two requests. Any rise breaks the first promise: take the node out.",
    "pool", "node",
)  # fmt: skip
STALE_FRAMES = _counter(
    "stale_frames",
    "Messages of leases that are over, dropped. Some follow lost links; a steady rise means an agent that lags.",
    "node",
)  # fmt: skip
CANARIES = _counter(
    "canaries",
    "Known tool calls that workers had to make. A failed one has recycled its worker.",
    "pool", "result",
)  # fmt: skip
RECYCLES = _counter(
    "recycles",
    "Worker processes that were replaced. A steady rise of a judge's reason means a build that mixes requests.",
    "pool", "reason",
)  # fmt: skip
DRIFT_TOKENS = _histogram(
    "drift_tokens",
    "How far a slot's counters were from the calibrated baseline after a lease. Above the tolerance it contaminates.",
    _DRIFT_TOKENS, "pool",
)  # fmt: skip
HANDOFF_SECONDS = _histogram(
    "handoff_seconds",
    "From the end of one generation at a slot to the start of the next while requests wait: the price of verification.",
    _HANDOFF_SECONDS, "pool",
)  # fmt: skip
TOKENS = _counter(
    "tokens",
    "Tokens that engines reported, failed attempts included. A fall under load means stalls.",
    "pool", "kind",
)  # fmt: skip
WORKERS = _gauge(
    "workers",
    "Workers by the phase their agent reports. A rise of BACKOFF or FATAL means something that does not start.",
    "pool", "phase",
)  # fmt: skip
WORKERS_DESIRED = _gauge(
    "workers_desired",
    "Workers that the pool's spec asks for. It rises only by an edit of the spec or by an autoscaler.",
    "pool",
)  # fmt: skip
DEMAND = _gauge(
    "demand",
    "Requests queued and in flight: what to scale on, with a target of 1 per worker. A lasting rise above the ready "
    "workers means waiting.",
    "pool",
)  # fmt: skip
QUEUE_DEPTH = _gauge(
    "queue_depth", "Requests that wait. A lasting rise means more demand than ready workers.", "pool", "priority"
)
QUEUE_BYTES = _gauge(
    "queue_bytes", "Bytes of the bodies that wait. Near queue.maxBytes new requests are refused.", "pool"
)
QUEUE_OLDEST_SECONDS = _gauge(
    "queue_oldest_seconds",
    "Age of the oldest waiting request, by what blocks it: `capacity` (no slot is offered) or `excluded` (a retry "
    "waits for a slot that has not failed it). Rising under `capacity` beside idle slots: dispatching is stuck.",
    "pool", "blocked",
)  # fmt: skip
SLOTS = _gauge(
    "slots",
    "Slots by activity: `idle` (offered), `leased`, or `unavailable` (starting, settling, proving itself, or down). "
    "A rise of `unavailable` is capacity spent on something other than requests.",
    "pool", "state",
)  # fmt: skip
NODE_CONNECTED = _gauge(
    "node_connected",
    "1 while the node's agent is connected. A fall to 0 takes its workers away.",
    "node",
    "unschedulable",
)
LINKS_OPENED = _counter(
    "links_opened",
    "New links of a node's agent, the first one included. A rise means that the agent was started again, or that its "
    "last link was lost. Like all of these: without a node where the agent had not said who it is.",
    "node",
)  # fmt: skip
LINKS_RESUMED = _counter(
    "links_resumed",
    "Connections that took up a link whose last one had broken. Nothing was lost; a steady rise means a bad network, "
    "or a proxy that cuts WebSockets.",
    "node",
)  # fmt: skip
LINKS_LOST = _counter(
    "links_lost",
    "Links that ended without being closed. Each one cost its node's running requests an attempt: the agent died, was "
    "away for too long, or took too little of what it was sent.",
    "node",
)  # fmt: skip
LINK_REFUSALS = _counter(
    "link_refusals",
    "Connections turned away: a wrong token, no common version, or nothing asked for in time. A steady rise is an "
    "agent whose token file or version is wrong, or a stranger at the port.",
    "node",
)  # fmt: skip
LINK_MALFORMED_FRAMES = _counter(
    "link_malformed_frames",
    "Frames that no agent sends. Each one ended its connection, and its link if it had one. With a node any rise is a "
    "bug or a broken network; without, a stranger at the port.",
    "node",
)  # fmt: skip
LINK_DUPLICATES = _counter(
    "link_duplicates",
    "Messages that came again after a resume, and were dropped. Some follow each resume; a rise without one is a bug.",
    "node",
)  # fmt: skip
WORKER_LAST_READY = _gauge(
    "worker_last_ready_timestamp_seconds",
    "Unix time at which a desired worker was last ready, or became desired. The older, the longer stuck.",
    "pool", "node", "worker",
)  # fmt: skip
DESIRED_APPLIED = _gauge(
    "desired_applied_timestamp_seconds",
    "Unix time at which the gateway last took in a desired state. Growing old means that the source of it is gone.",
)
LOG_LINES_DROPPED = _counter(
    "log_lines_dropped",
    "Lines of the log that were not written: its reader hangs or is gone, or the disk is full. Requests go on without.",
)
BUILD_INFO = _gauge(
    "build_info", "Always 1; the label tells which version runs. Two values at once mean a rollout.", "version"
)

DEFINITIONS: tuple[Definition, ...] = (
    REQUESTS,
    REQUEST_SECONDS,
    TIME_TO_FIRST_BYTE_SECONDS,
    REQUEST_ATTEMPTS,
    QUEUE_WAIT_SECONDS,
    LEASES,
    RELEASED,
    LEASE_VIOLATIONS,
    STALE_FRAMES,
    CANARIES,
    RECYCLES,
    DRIFT_TOKENS,
    HANDOFF_SECONDS,
    TOKENS,
    WORKERS,
    WORKERS_DESIRED,
    DEMAND,
    QUEUE_DEPTH,
    QUEUE_BYTES,
    QUEUE_OLDEST_SECONDS,
    SLOTS,
    NODE_CONNECTED,
    LINKS_OPENED,
    LINKS_RESUMED,
    LINKS_LOST,
    LINK_REFUSALS,
    LINK_MALFORMED_FRAMES,
    LINK_DUPLICATES,
    WORKER_LAST_READY,
    DESIRED_APPLIED,
    LOG_LINES_DROPPED,
    BUILD_INFO,
)
