"""Which of the audited records a trial looks at: all of them, or those of its shard, where runs are shared out.

Trial ``run * count + shard`` repeats the training of its run, draw for draw, and looks at the records of its shard
alone: one look at all records of a large data set costs more than many steps of training. What is done once for a run
is done by its first shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Every shard trains anew: at most so many of a run.
MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Shards:
    """``records`` audited records in ``count`` shards of neighbours, none more than one larger than another."""

    records: int
    count: int

    @property
    def largest(self) -> int:
        """How many records the largest shard has."""
        return -(-self.records // self.count)

    def part(self, shard: int) -> slice:
        """The places of a shard's records among those that are audited."""
        return slice(shard * self.records // self.count, (shard + 1) * self.records // self.count)

    def place(self, index: int) -> tuple[int, int]:
        """The run and the shard of a trial."""
        return divmod(index, self.count)


def shards_of(audit: Mapping[str, Any], records: int) -> Shards:
    """From the audit's options, or from ``split`` of a trial's inputs; ``records``: how many are audited."""
    most = int(audit.get("shard_records") or records)
    return Shards(records=records, count=max(1, -(-records // most)))
