"""Engines' answers, made so that a client's copy tells where each piece came from and whether it is right."""

from __future__ import annotations

from enum import StrEnum

from basert_fleet.core.epoch import Epoch
from basert_fleet.gateway.exchange import Exchange
from model.machine import Broken

END = b";"


class Truth(StrEnum):
    """What an answer is, as only the model knows."""

    RIGHT = "right"
    ODD = "odd"
    WRONG = "wrong"


class PieceKind(StrEnum):
    """Which piece of an answer."""

    TEXT = "text"
    """The beginning of a stream: it goes out before anything is judged."""
    REST = "rest"
    """The end of a stream, or a whole answer."""


def piece(request: str, worker: str, epoch: Epoch, kind: PieceKind, truth: Truth) -> bytes:
    """Return one piece of the answer to this request."""
    return f"{request} {worker}/{epoch} {kind} {truth}".encode() + END


def check_answer(exchange: Exchange) -> None:
    """Hold what a client got against promises 3 and 4.

    Raises:
        Broken: it got a wrong answer, another one's, none at all, or parts of two attempts.
    """
    request = exchange.ask.request_id
    if not exchange.outbox.closed:
        raise Broken(4, f"{request} is over, and its client waits for ever")
    data = exchange.outbox.take()
    if exchange.failure is not None:
        data = data.removesuffix(exchange.failure.event())
    pieces = [part.decode().split(" ") for part in data.split(END)[:-1]]
    if any(owner != request for owner, *_ in pieces):
        raise Broken(3, f"{request} got a piece of another request's answer: {pieces}")
    if len({lease for _, lease, *_ in pieces}) > 1:
        raise Broken(3, f"{request} got pieces of two attempts: {pieces}")
    expected = [PieceKind.TEXT, PieceKind.REST] if exchange.ask.streams else [PieceKind.REST]
    kinds = [kind for _, _, kind, _ in pieces]
    if exchange.failure is not None:
        if kinds not in ([], [PieceKind.TEXT], expected if exchange.ask.streams else []):
            raise Broken(3, f"{request} failed with {exchange.failure.code} after it got {kinds}")
        return
    if kinds != expected:
        raise Broken(4, f"{request} got {kinds} as if that was its answer")
    truth = pieces[-1][-1]
    if truth == Truth.WRONG or (truth == Truth.ODD and not exchange.agreed):
        raise Broken(3, f"{request} got an answer that is {truth}")
