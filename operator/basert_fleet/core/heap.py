"""A heap from which any key can be taken out: for queues and deadlines whose entries mostly leave before their turn."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf

SLACK = 64
"""Dead entries that are tolerated before a rebuild; chosen so that small heaps are never rebuilt."""


class KeyedHeap:
    """Keys in the order of their ranks, each key at most once.

    All operations cost O(log n), spread over many calls. What is taken out stays in the heap as a dead entry until it
    comes up or outnumbers the live ones, so the memory is bounded by what is alive.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    def put(self, key: str, rank: float) -> None:
        """Add the key, or move it to another rank."""
        self._ranks[key] = rank
        heappush(self._heap, (rank, key))
        self._drop_dead()

    def discard(self, key: str) -> None:
        """Take the key out; a key that is not there is fine."""
        self._ranks.pop(key, None)
        self._drop_dead()

    def first(self) -> str:
        """Return the key with the smallest rank; it stays in.

        Raises:
            IndexError: the heap is empty.
        """
        return self._heap[0][1]

    def first_rank(self) -> float:
        """Return the smallest rank; infinity when the heap is empty."""
        return self._heap[0][0] if self._heap else inf

    def take_until(self, rank: float) -> Iterator[str]:
        """Take out and yield, in order, each key whose rank is at most this one."""
        while self._heap and self._heap[0][0] <= rank:
            key = self._heap[0][1]
            self.discard(key)
            yield key

    def _drop_dead(self) -> None:
        """Keep a live entry on top, and the dead ones fewer than the live ones."""
        if len(self._heap) > 2 * len(self._ranks) + SLACK:
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)
        while self._heap and self._ranks.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
