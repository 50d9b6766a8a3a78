"""basert-sim: an emulator of basert-serve, its bug included, as an operating-system process of its own.

It imports nothing of the other rooms. Every fleet recycles it hundreds of times, so it starts cheaply: its own
`selectors` loop instead of asyncio, `json` instead of msgspec, NamedTuples instead of dataclasses (see docs/emulator.md
for what each of them costs at start).
"""

from __future__ import annotations
