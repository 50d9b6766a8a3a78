"""Servers that something else runs, as the engines of a worker.

There is no process of ours behind one: it is known by its port alone, and others may use it too. What a child would be
killed for puts it in doubt instead (`core.doubt`): it is then replaced by its `restartCommand`, or left alone until
/slots dispels the doubt. It is never stopped, and a fleet that ends leaves it running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from basert_fleet.agent.engines import StartFailed
from basert_fleet.agent.generation import EngineLine
from basert_fleet.agent.processes import describe_status, run_command
from basert_fleet.agent.slot import Slot
from basert_fleet.agent.state import SlotRecord
from basert_fleet.core.api import BasertWorker
from basert_fleet.core.doubt import Cause, Doubt
from basert_fleet.core.server_address import ServerAddress
from basert_fleet.core.settle import SlotsPage

HEALTH_SECONDS = 1.0
FIRST_LOOK_SECONDS, LATER_LOOK_SECONDS, LOOK_GROWTH = 0.05, 1.0, 1.5
"""How soon a server that does not answer is asked again, how often at most later, and how the pause grows."""
WATCH_SECONDS = 1.0
"""Chosen: a server that went away is known a second later; looking costs it one connection on loopback."""
COMMAND_SECONDS = 120.0
"""Chosen: a restart command tells something to restart the server and returns; loading the model is not its part."""
RESTART_SECONDS = 600.0
"""Chosen: how long after it a fresh process may take to answer; a large model loads within that."""
DOUBT_LOOK_SECONDS = 5.0
"""Chosen: how often a server in doubt is asked for its counters, so that a restart by hand is soon seen."""


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """One entry of `spec.attach`, as its worker needs it."""

    address: ServerAddress
    api_key: str = ""
    """Empty if the server asks for none."""
    restart_command: tuple[str, ...] = ()
    """Empty if it can only be restarted by others."""

    def line(self) -> EngineLine:
        """Return new connections to it, none of them open yet."""
        return EngineLine(self.address.host, self.address.port, self.api_key)


class Attachment:
    """One attached server as its worker's source of engines; each time it was given up, the next engine is it again."""

    def __init__(self, server: AttachedServer, record: SlotRecord, log: Path) -> None:
        """Begin with what the last fleet left: one doubt for whatever it doubted, which starting again does not clear.

        Only a fresh process ends it, also if the fleet was killed during a request: nobody judged what that left, and
        work that is seen now may be somebody else's, while the request still waits to be accepted.
        """
        self._server, self._record, self._log = server, record, log
        self._use: ServerUse | None = None
        self._unrecorded = ""
        self._doubt = Doubt(Cause.CONTAMINATED, last=None) if _left_unsettled(record, server.address) else None

    @property
    def note(self) -> str:
        """Which server is waited for, or being restarted."""
        if self._doubt is None:
            return f"waits for the server at {self._server.address}"
        return f"restarts the server at {self._server.address}" + (f". {self._unrecorded}" if self._unrecorded else "")

    @property
    def out_of_service(self) -> str:
        """What has to happen to a server in doubt that cannot be restarted from here."""
        if self._doubt is None or self._server.restart_command:
            return ""
        return (
            f"Restart the server at {self._server.address}: it is out of service until /slots shows a fresh process"
            f"{' or the end of its last request' if self._doubt.cause is Cause.UNPROVEN else ''}. "
            "With restartCommand the fleet would restart it itself."
        )

    @contextlib.contextmanager
    def turn(self) -> Iterator[asyncio.Event]:
        """Give a turn at once: a server may be waited for without limit, and nothing of ours starts."""
        turn = asyncio.Event()
        turn.set()
        yield turn

    async def launch(self, worker: BasertWorker, generation: int) -> Slot:  # noqa: ARG002 - it runs as it is
        """Return a slot on the server, which may be away."""
        line = self._server.line()
        self._use = ServerUse(self._server.address, line)
        return Slot(self._use, self._record, line, generation)

    async def listening(self, slot: Slot) -> None:
        """Return once the server answers, for which it is waited without limit; one in doubt is restarted first."""
        if self._use is None:
            raise RuntimeError("no server was attached")
        if self._doubt is not None:
            await self._restart(self._doubt, slot.line)
        else:
            await _answers(slot.line)
        probe = await slot.line.ask()
        self._require_key(slot.line)  # before anything is sent that could leave a doubt
        self._record.attached(self._server.address.port)
        slot.line.remember(probe)
        self._doubt = None
        self._use.begin()

    def ended(self) -> str:
        """Take over what is doubted of the server, and record it for the next fleet."""
        use, self._use = self._use, None
        self._doubt = (use.doubt if use is not None else None) or self._doubt
        self._unrecorded = ""
        if self._doubt is None:
            with contextlib.suppress(OSError):  # then it tells of a request that is over: the next fleet doubts more
                self._record.ended()
            return ""
        try:
            self._record.doubted()
        except OSError as error:
            self._unrecorded = (
                f"This could not be recorded ({error.strerror or error}): a fleet that is started again before the "
                "server was restarted may use it."
            )
        return self._unrecorded

    async def mended(self) -> None:
        """Return once what /slots shows has dispelled the doubt; never if there is none."""
        if self._doubt is None:
            await asyncio.get_running_loop().create_future()
        line = self._server.line()
        try:
            while self._doubt is not None:
                self._doubt = self._doubt.after(await line.ask())
                if self._doubt is not None:
                    await asyncio.sleep(DOUBT_LOOK_SECONDS)
        finally:
            line.close()

    def _require_key(self, line: EngineLine) -> None:
        """Raise StartFailed if the server has just refused the key: it would refuse every request as well."""
        if line.key_refusal is None:
            return
        compare = (
            "compare apiKeyFile with" if self._server.api_key else "set apiKeyFile to a file that holds the key of"
        )
        raise StartFailed(
            f"the server at {self._server.address} refuses the key ({line.key_refusal}): {compare} its --api-key, then "
            "start the fleet again"
        )

    async def _restart(self, doubt: Doubt, line: EngineLine) -> None:
        """Run the restart command, and return once another process answers.

        Raises:
            StartFailed: there is no command, it failed, or what answers is the process that was there before.
        """
        command, address = self._server.restart_command, self._server.address
        if not command:
            raise StartFailed(f"the server at {address} was not known to be idle and clean when it was last used")
        try:
            status = await run_command(command, log=self._log, seconds=COMMAND_SECONDS)
        except TimeoutError:
            raise StartFailed(
                f"restartCommand did not end within {COMMAND_SECONDS:.0f} seconds, and was killed. It must return once "
                "the restart is under way, and leave the server running in the background"
            ) from None
        except OSError as error:
            raise StartFailed(f"restartCommand cannot be run: {error}") from error
        if status != 0:
            raise StartFailed(f"restartCommand {describe_status(status)}")
        try:
            async with asyncio.timeout(RESTART_SECONDS):
                await _answers_anew(line, doubt)
        except TimeoutError:
            raise StartFailed(
                f"{RESTART_SECONDS:.0f} seconds after restartCommand ended, no fresh process answers at {address}"
            ) from None


class ServerUse:
    """An attached server from one warm-up until it is given up: to its worker, what a child is otherwise.

    `exited` resolves when it went away, seems to have been restarted, or is in doubt.
    """

    pid = None
    probe_good_for_seconds = 0.0
    """Others may use it at any time: whatever a probe showed may be over."""

    def __init__(self, address: ServerAddress, line: EngineLine) -> None:
        """Begin with a server that is not known to answer; until `begin` nothing is doubted of it."""
        self._address, self._line = address, line
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.doubt: Doubt | None = None
        self._how = ""
        self._watch: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Take note that it answers, and from now on may be sent requests."""
        self._watch = asyncio.create_task(self._watch_over(), name=f"watch {self._address}")

    def describe_exit(self) -> str:
        """Say why it is not used any more."""
        return f"at {self._address} {self._how or 'is still used'}"

    def stopped(self) -> bool:
        """Say that no signal is known to have halted it: without its pid that cannot be seen."""
        return False

    def remember_family(self) -> None:
        """Do nothing: what it forks is not ours to end."""

    def has_exited(self) -> bool:
        """Say whether its use is over; no pid tells more."""
        return self.exited.done()

    def suspect_restart(self, sign: str) -> None:
        """Give it up as restarted: whatever answers next has to prove itself anew."""
        self._leave(f"seems to have been restarted ({sign})", None)

    def give_up(self) -> None:
        """Give it up without a proof that its last request has ended; what cannot be killed is left in doubt."""
        self._leave("was not proven idle, and cannot be killed from here", Cause.UNPROVEN)

    async def end(self, *, drain_seconds: float) -> None:
        """Leave it running; with no time to drain it is not trusted any more."""
        self._leave("was let go", None if drain_seconds > 0 else Cause.CONTAMINATED)
        if self._watch is not None:
            await asyncio.wait({self._watch})

    def _leave(self, how: str, cause: Cause | None) -> None:
        """Use it no more; the first word counts. Nothing is doubted of a server that was never sent anything."""
        if self.exited.done():
            return
        if self._watch is not None:
            self._watch.cancel()
            self.doubt = Doubt(cause, self._line.last_probe) if cause is not None else None
        self._how = how
        self.exited.set_result(0)

    async def _watch_over(self) -> None:
        """Give it up once nothing listens there. A server that only keeps silent may be in a prefill (C16)."""
        while await _listens(self._address):  # noqa: ASYNC110  # a server that is not ours gives no event
            await asyncio.sleep(WATCH_SECONDS)
        self._leave("does not listen any more", None)


async def _answers(line: EngineLine) -> None:
    pause = FIRST_LOOK_SECONDS
    while not await line.probes.healthy(HEALTH_SECONDS):
        await asyncio.sleep(pause)
        pause = min(pause * LOOK_GROWTH, LATER_LOOK_SECONDS)


async def _answers_anew(line: EngineLine, doubt: Doubt) -> None:
    """Return once something answers that is not seen to be the process in doubt; without /slots that cannot be seen."""
    pause = FIRST_LOOK_SECONDS
    while True:
        await _answers(line)
        probe = await line.ask()
        if line.slots_page is SlotsPage.ABSENT or not doubt.denies_restart(probe):
            return
        await asyncio.sleep(pause)
        pause = min(pause * LOOK_GROWTH, LATER_LOOK_SECONDS)


async def _listens(address: ServerAddress) -> bool:
    """Say whether connections are taken there; only that they are refused means no."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return True
    except OSError:
        return False
    writer.close()
    return True


def _left_unsettled(record: SlotRecord, address: ServerAddress) -> bool:
    """Say whether an earlier fleet gave up this server, or ended, while it was in doubt."""
    left = record.read()
    return left is not None and left.is_of_this_boot and left.port == address.port and not left.settled
