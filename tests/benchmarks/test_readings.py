"""What the kernel, HAProxy and the load generator print, read without running them."""

from __future__ import annotations

import hashlib

import pytest
import yaml
from benchmarks.load import RequestsFailed, read_seen
from benchmarks.processes import TICKS_PER_SECOND, cpu_seconds, resident_bytes
from benchmarks.targets import FLEET_FILE, KEYS, haproxy_queue, keys_file

from basert_fleet.core.api import BasertPool

STAT = "7 (a (b) c) S 1 7 7 0 -1 4194560 5000 0 0 0 150 50 0 0 20 0 1 0 4711 1000000 2000"


def test_cpu_is_user_and_system_time() -> None:
    """Both modes count, and brackets in a program's name mislead nobody."""
    assert cpu_seconds(STAT) == pytest.approx(200 / TICKS_PER_SECOND)


def test_resident_memory_is_in_bytes() -> None:
    """The kernel tells kibibytes."""
    assert resident_bytes("Name:\tup\nVmPeak:\t  900 kB\nVmRSS:\t  100 kB\n") == 102_400


def test_requests_wait_in_the_backend_or_at_a_server() -> None:
    """HAProxy counts both, and leaves the frontend's count empty."""
    statistics = "# pxname,svname,qcur,qmax\nbench,FRONTEND,,\nbench,s1,2,4\nbench,BACKEND,7,9\n\n"
    assert haproxy_queue(statistics) == 9


def test_a_failed_request_spoils_the_run() -> None:
    """Figures are never taken from a run in which a client saw an error."""
    with pytest.raises(RequestsFailed, match="429"):
        read_seen('{"failures": {"HTTP/1.1 429 Too Many Requests": 1}, "seconds": 1, "requests": 3}')


def test_the_load_generators_line_is_read_whole() -> None:
    """All that the clients saw arrives."""
    found = read_seen(
        '{"seconds": 2, "requests": 3, "events": 4, "failures": {}, "latency_p50_us": 5, "latency_p99_us": 6}'
    )
    assert (found.seconds, found.requests, found.events, found.latency_p99_us) == (2, 3, 4, 6)


def test_the_fleet_file_is_one_that_the_schema_takes() -> None:
    """A change of the schema that breaks the benchmark is found by the tests."""
    text = FLEET_FILE.format(slots=1000, program="/cache/backend", socket="/tmp/engines.sock", places=20_000)
    assert BasertPool.model_validate(yaml.safe_load(text)).spec.replicas == 1000


def test_each_key_is_a_tenant_of_its_own() -> None:
    """The queue has somebody to be fair to, and the keys that the clients send are the file's."""
    entries = yaml.safe_load(keys_file())["keys"]
    assert len({entry["tenant"] for entry in entries}) == len(KEYS)
    assert [entry["sha256"] for entry in entries] == [hashlib.sha256(key.encode()).hexdigest() for key in KEYS]
