"""Shards: a grid in parts, for batch systems. Stacks are dealt, not runs, so that every run is
trained in the company that it has in one sweep, and gives the same numbers."""

import re
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from equipoise.errors import InvalidValue, require
from equipoise.sweeps.stacks import Stack, key_of, work_of

MOST_PARTS = 100_000


class Shard(NamedTuple):
    """One of so many parts of a grid, counted from 1."""

    part: int = 1
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}"

    def stacks(self, every: Sequence[Stack]) -> list[Stack]:
        """The stacks of this part. The longest are dealt first, each to the part that has least
        work so far."""
        if self.parts == 1:
            return [*every]
        busy = min(self.parts, len(every))  # later parts would get none
        mine, loads = [], [(0, part) for part in range(1, busy + 1)]
        heapify(loads)
        for work, _, stack in sorted((-work_of(s), key_of(s[0][0]), s) for s in every):
            load, part = heappop(loads)
            heappush(loads, (load - work, part))
            if part == self.part:
                mine.append(stack)
        return mine


WHOLE = Shard()


def read_shard(text: str | None) -> Shard:
    """The shard that a user means by 2/8; all of the grid, if none is meant."""
    if text is None:
        return WHOLE
    if not (match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)):
        raise InvalidValue(f"shard={text} is not I/N: 1/4 is the first of four parts")
    shard = Shard(int(match[1]), int(match[2]))
    require(shard.parts >= 1, f"shard={text} has no parts: 1/4 is the first of four")
    require(
        shard.parts <= MOST_PARTS,
        f"shard={text} is one of more than {MOST_PARTS:,} parts: give fewer",
    )
    require(
        1 <= shard.part <= shard.parts,
        f"shard={text} is not one of {shard.parts} parts: give 1/{shard.parts} to "
        f"{shard.parts}/{shard.parts}",
    )
    return shard
