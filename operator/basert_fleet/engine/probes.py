"""Asking an engine how it is: /slots and /health, on a connection of their own.

No answer is an answer: /slots may be silent for a whole prefill (C16), so `None` says that nothing is known, never that
the slot is idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SlotsPage
from basert_fleet.engine.connection import Data, EngineConnection, EngineGone, GoneCause, RequestEncoder, ResponseHead

MAX_ANSWER_BYTES = 1_048_576
"""Chosen: far above any answer about one slot, low enough to read a stranger's answer without harm."""
OK, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 401, 403, 404


class _Slot(msgspec.Struct, frozen=True):
    """One element of /slots, as the report shows it."""

    is_processing: bool
    cache_tokens: int
    cache_position: int


_SLOTS = msgspec.json.Decoder(tuple[_Slot, ...])

Answer: TypeAlias = tuple[int, bytes]
"""Status and body."""


class Question:
    """One question under way. Its answer comes by a callback, once, unless it is given up before."""

    def __init__(
        self,
        connection: EngineConnection,
        host: str,
        port: int,
        request: bytes,
        answered: Callable[[Answer | None], None],
    ) -> None:
        """Ask; on the open connection if there is one, and if the engine closes that unanswered, again on a new one.

        `answered` gets None if the engine cannot be reached, cuts its answer, breaks the protocol or never ends: an
        engine that does one of the last three to this question has answered it, so it is not asked again.
        """
        self._connection, self._host, self._port, self._request = connection, host, port, request
        self._answered = answered
        self._status, self._body = 0, bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._over = False
        self._on_old_connection = connection.reusable
        if self._on_old_connection:
            self._send()
        else:
            self._connect()

    def give_up(self) -> None:
        """Want no answer any more; one that comes late cannot be taken for that of another question."""
        if not self._over:
            self._over = True
            self._connection.unwatch()
            self._connection.close()
            if self._connecting is not None:
                self._connecting.cancel()

    def _connect(self) -> None:
        self._on_old_connection = False
        self._connection.unwatch()  # the end of the old one is no news
        self._connecting = asyncio.create_task(self._send_anew(), name="a probe's connection")

    async def _send_anew(self) -> None:
        try:
            await self._connection.connect(self._host, self._port)
            self._send()
        except EngineGone:
            self._end(None)

    def _send(self) -> None:
        self._connection.watch(self._read)
        self._connection.send(self._request)

    def _read(self) -> None:
        """Read what has arrived of the answer."""
        try:
            while (event := self._connection.take()) is not None:
                if isinstance(event, Data):
                    self._body += event.data
                    if len(self._body) > MAX_ANSWER_BYTES:
                        self._refuse()
                        return
                elif isinstance(event, ResponseHead):
                    self._status = event.status
                else:
                    self._end((self._status, bytes(self._body)))
                    return
        except EngineGone as gone:
            # An idle connection may be closed at any time: that says nothing about the engine.
            if self._on_old_connection and gone.cause is GoneCause.CLOSED:
                self._connect()
            else:
                self._end(None)

    def _refuse(self) -> None:
        """Read no more of an answer that is too long, even if its end is there already."""
        self._connection.unwatch()  # closing tells
        self._connection.close()
        self._end(None)

    def _end(self, answer: Answer | None) -> None:
        self._over = True
        self._connection.unwatch()
        self._answered(answer)


class ProbeClient:
    """Asks one engine, one question at a time: who asks anew gives up the question before."""

    def __init__(self, host: str, port: int, api_key: str) -> None:
        self._host, self._port = host, port
        requests = RequestEncoder(host, port, api_key)
        self._slots_request, self._health_request = requests.get("/slots"), requests.get("/health")
        self._connection = EngineConnection()
        self._question: Question | None = None
        self.page = SlotsPage.PRESENT
        """Absent once /slots was answered with 404: an older or other build, which no waiting will change."""
        self.key_refusal: int | None = None
        """The status, 401 or 403, if the last answer of /slots refused the key; None if it did not."""

    def ask_slots(self, answered: Callable[[Probe | None], None]) -> Question:
        """Ask for the slot's counters; None if the engine does not tell those of exactly one slot.

        The question has no time limit: whoever asks gives it up.
        """
        return self._ask(self._slots_request, lambda answer: answered(self._counters(answer)))

    async def slots(self, timeout: float) -> Probe | None:  # noqa: ASYNC109  # the answer to "too late" is None
        """Return the slot's counters, or None when the engine did not tell them within `timeout` seconds."""
        return self._counters(await self._answer(self._slots_request, timeout))

    async def healthy(self, timeout: float) -> bool:  # noqa: ASYNC109  # the answer to "too late" is False
        """Say whether /health answered 200 in time. It proves that something listens there, not that it works (C15)."""
        answer = await self._answer(self._health_request, timeout)
        return answer is not None and answer[0] == OK

    def close(self) -> None:
        """Give up the question under way and close the connection; a later question opens a new one."""
        if self._question is not None:
            self._question.give_up()
        self._connection.close()

    def _ask(self, request: bytes, answered: Callable[[Answer | None], None]) -> Question:
        if self._question is not None:
            self._question.give_up()
        self._question = Question(self._connection, self._host, self._port, request, answered)
        return self._question

    async def _answer(self, request: bytes, timeout: float) -> Answer | None:  # noqa: ASYNC109  # as above
        told: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer | None) -> None:
            if not told.done():  # else it was cancelled in this very turn
                told.set_result(answer)

        question = self._ask(request, tell)
        try:
            async with asyncio.timeout(timeout):
                return await told
        except TimeoutError:
            return None
        finally:
            question.give_up()

    def _counters(self, answer: Answer | None) -> Probe | None:
        if answer is None:
            return None
        status, body = answer
        if status == NOT_FOUND:
            self.page = SlotsPage.ABSENT
        self.key_refusal = status if status in {UNAUTHORIZED, FORBIDDEN} else None
        return read_slots(body) if status == OK else None


def read_slots(body: bytes) -> Probe | None:
    """Return the counters that an answer of /slots tells, or None if it does not tell those of exactly one slot."""
    try:
        slots = _SLOTS.decode(body)
    except msgspec.DecodeError:
        return None
    if len(slots) != 1:
        return None
    return Probe(slots[0].is_processing, slots[0].cache_tokens, slots[0].cache_position)
