"""Asking an engine how it is: /slots and /health, on a connection of their own.

A question has a time limit, and no answer is an answer: /slots may be silent for a whole prefill (C16), so `None` says
that nothing is known, never that the slot is idle.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec

from basert_fleet.core.errors import FleetError
from basert_fleet.core.isolation import Probe
from basert_fleet.engine.connection import (
    Data,
    EndOfResponse,
    EngineConnection,
    EngineGone,
    ResponseHead,
    encode_request,
    headers_to,
)

MAX_ANSWER_BYTES = 1_048_576
"""Chosen: far above any answer about one slot, low enough to read a stranger's answer without harm."""
OK, NOT_FOUND = 200, 404


class SlotsAbsent(FleetError):
    """The engine has no /slots: an older or other build, which no waiting will change."""

    code: ClassVar[str] = "slots_absent"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"GET /slots at {host}:{port} answered 404: this engine does not tell its slot's counters. "
            "Use a build that has /slots, or set isolation.requireSlots: false and take what nothing verifies."
        )
        self.host, self.port = host, port


class _Slot(msgspec.Struct, frozen=True):
    """One element of /slots, as the report shows it."""

    is_processing: bool
    cache_tokens: int
    cache_position: int


_SLOTS = msgspec.json.Decoder(tuple[_Slot, ...])


class ProbeClient:
    """Asks one engine, one question at a time; several tasks may ask."""

    def __init__(self, host: str, port: int, api_key: str) -> None:
        self._host, self._port = host, port
        self._headers = headers_to(host, port, api_key)
        self._connection = EngineConnection()
        self._turn = asyncio.Lock()

    async def slots(self, timeout: float) -> Probe | None:  # noqa: ASYNC109  # the answer to "too late" is None
        """Return the slot's counters, or None when the engine did not tell them within `timeout` seconds.

        An answer that is not about exactly one slot tells nothing either.

        Raises:
            SlotsAbsent: it answered that there is no /slots.
        """
        answer = await self._ask("/slots", timeout)
        if answer is None:
            return None
        status, body = answer
        if status == NOT_FOUND:
            raise SlotsAbsent(self._host, self._port)
        return read_slots(body) if status == OK else None

    async def healthy(self, timeout: float) -> bool:  # noqa: ASYNC109  # the answer to "too late" is False
        """Say whether /health answered 200 in time. It proves that something listens there, not that it works (C15)."""
        answer = await self._ask("/health", timeout)
        return answer is not None and answer[0] == OK

    def close(self) -> None:
        """Close the connection; a later question opens a new one."""
        self._connection.close()

    async def _ask(self, path: str, timeout: float) -> tuple[int, bytes] | None:  # noqa: ASYNC109  # as above
        request = encode_request("GET", path, self._headers)
        try:
            async with asyncio.timeout(timeout), self._turn:
                return await self._exchange(request)
        except (TimeoutError, EngineGone):
            return None

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        """Ask on the open connection; if the engine had closed it meanwhile, once more on a new one."""
        if self._connection.reusable:
            try:
                return await self._ask_once(request)
            except EngineGone:
                pass  # an idle connection may be closed at any time: that says nothing about the engine
        await self._connection.connect(self._host, self._port)
        return await self._ask_once(request)

    async def _ask_once(self, request: bytes) -> tuple[int, bytes]:
        """Send one question and read its answer; an unfinished one leaves the connection closed."""
        finished = False
        try:
            self._connection.send(request)
            answer = await self._read_answer()
            finished = True
        finally:
            if not finished:
                self._connection.close()
        return answer

    async def _read_answer(self) -> tuple[int, bytes]:
        status, body = 0, bytearray()
        while True:
            match await self._connection.next_event():
                case ResponseHead(status=status):
                    pass
                case Data(data=data):
                    body += data
                    if len(body) > MAX_ANSWER_BYTES:
                        self._connection.close()
                case EndOfResponse():
                    return status, bytes(body)


def read_slots(body: bytes) -> Probe | None:
    """Return the counters that an answer of /slots tells, or None if it does not tell those of exactly one slot."""
    try:
        slots = _SLOTS.decode(body)
    except msgspec.DecodeError:
        return None
    if len(slots) != 1:
        return None
    return Probe(slots[0].is_processing, slots[0].cache_tokens, slots[0].cache_position)
