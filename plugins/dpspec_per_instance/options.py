"""What a spec asks for, with its defaults: which records, which runs, how steps compose. No torch, no numerics."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec import kit

#: So many runs keep logs of how the pipeline ran, and so many steps of each are measured on all training records.
LOGGED_RUNS, MEASURED_STEPS = 2, 16

#: The direction whose runs are the same for all records of a population: those on the data as declared. Removing a
#: record compares with-it to without-it, and expectations are over runs on the first.
SHARED_DIRECTION = {"train": "remove", "test": "add"}

#: The population of claims and quantiles where points are listed one by one.
CHOSEN = "chosen"

#: Every shard trains anew: at most so many of a run.
MOST_SHARDS = 1000


#: Each score is stored as the number of these edges that it reaches: natural logarithms of likelihood ratios.
EDGES = tuple(number / 64 for number in range(-1024, 1025))


@dataclass(frozen=True, kw_only=True)
class Audited:
    """Which records are audited, in which directions.

    points: places in the population; of all of it a range, which takes no memory.
    sampled: whether they were drawn at random from it.
    """

    population: str
    size: int
    points: Sequence[int]
    sampled: bool
    directions: tuple[str, ...]

    @property
    def point_set(self) -> Collection[int]:
        """The points, to ask whether a record is among them."""
        return self.points if isinstance(self.points, range) else frozenset(self.points)

    @property
    def shared_direction(self) -> str:
        """The direction that runs on the declared data serve, for all records at once."""
        return SHARED_DIRECTION[self.population]

    @property
    def needs_own_runs(self) -> bool:
        """Whether every record also needs runs on data of its own."""
        return any(direction != self.shared_direction for direction in self.directions)

    @property
    def widest_direction(self) -> str:
        """The widest direction that is audited."""
        return "both" if len(self.directions) == 2 else self.directions[0]

    @property
    def complete(self) -> bool:
        """Whether every record of the population is audited."""
        return len(self.points) == self.size

    @property
    def quantiles_of(self) -> str:
        """What quantiles are of: the population, or the records that were ``chosen`` one by one."""
        return self.population if self.complete or self.sampled else CHOSEN

    @property
    def quantile_size(self) -> int:
        """How many records quantiles are of."""
        return len(self.points) if self.quantiles_of == CHOSEN else self.size


@dataclass(frozen=True)
class Sample:
    """So many records of a population, drawn at random from a seed."""

    count: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Population(kit.Options):
    """Which records a spec audits, of its ``threat_model`` in the document or among a trial's inputs.

    points: ``all`` of the population, a sample, or places that are listed.
    """

    name: str
    direction: str
    points: str | Sample | tuple[int, ...]

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Population:
        """From the whole block, with its direction."""
        points = block.get("points", "all")
        if isinstance(points, Mapping):
            points = Sample(int(points["count"]), int(points.get("seed", 0)))
        elif not isinstance(points, str):
            points = tuple(int(point) for point in points)
        return cls(
            name=str(block.get("population", "train")), direction=str(block.get("direction", "both")), points=points
        )

    def size(self, records: int, test_records: int) -> int:
        """How many records the population has, of data with two parts of these sizes."""
        return records if self.name == "train" else test_records

    def audited(self, records: int, test_records: int) -> Audited:
        """The audited records of data with two parts of these sizes."""
        size, points = self.size(records, test_records), self.points
        places: Sequence[int]
        if isinstance(points, str):
            places = range(size)
        elif isinstance(points, Sample):
            drawn = random.Random(points.seed).sample(range(size), min(points.count, size))
            places = tuple(sorted(drawn))
        else:
            places = points
        return Audited(
            population=self.name,
            size=size,
            points=places,
            sampled=isinstance(points, Sample),
            directions=("remove", "add") if self.direction == "both" else (self.direction,),
        )


def audited_records(spec: dps.Spec, facts: dps.Facts) -> Audited:
    """Which records a spec audits, of data with these ``facts``."""
    return Population.of(spec.document["threat_model"]).audited(facts.records, facts.test_records)


@dataclass(frozen=True, kw_only=True)
class Composition(kit.Options):
    """How steps are bounded and composed, of the block ``mechanism``; trials read ``observe_every`` alone.

    orders: Renyi orders, ascending. observe_every: how many steps lie between observations. exponent: the p of the
    composition theorem, or several, the last step's first; ``auto`` where it follows from the number of steps.
    nearest: whether steps that are not observed take the value of the nearest one that is.
    """

    orders: tuple[float, ...]
    step_bound: str
    observe_every: int
    exponent: str | float | tuple[float, ...]
    nearest: bool

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Composition:
        """From the mechanism's options."""
        composition = block.get("composition") or {}
        exponent = composition.get("exponent", "auto")
        if not isinstance(exponent, str):
            exponent = tuple(map(float, exponent)) if isinstance(exponent, tuple) else float(exponent)
        return cls(
            orders=tuple(sorted(float(order) for order in block.get("orders", ()))),
            step_bound=str(block.get("step_bound", "directional")),
            observe_every=int(composition.get("observe_every", 10)),
            exponent=exponent,
            nearest=composition.get("unobserved", "nearest") == "nearest",
        )

    def observed(self, steps: int) -> tuple[int, ...]:
        """The steps, of so many, before which norms are measured: 1, 1 + every, ..."""
        return tuple(range(1, steps + 1, self.observe_every))

    def exponent_over(self, steps: int) -> float | tuple[float, ...]:
        """The exponent over so many steps: 3 times their number where none is given."""
        return 3.0 * steps if isinstance(self.exponent, str) else self.exponent


@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    """Which records are attacked, and with how many runs in every trial. looks: how many steps are scored."""

    most: int
    least: int
    records: tuple[int, ...]
    runs: int
    looks: int | None

    @property
    def targets(self) -> int:
        """How many records are attacked."""
        return self.most + self.least + len(self.records)


@dataclass(frozen=True, kw_only=True)
class MeanRule:
    """What is estimated of one step with noise on a mean.

    batches, orders: as they are written, because seeds are drawn from their text. points: how many records; outer,
    inner: how many batches are compared with, and how many tuples of batches for each.
    """

    batches: tuple[float, ...]
    orders: tuple[int, ...]
    points: int
    outer: int
    inner: int


@dataclass(frozen=True, kw_only=True)
class AuditBlock(kit.Options):
    """The plugin's own keys of ``audit``; None for what is not asked for. shard_records: None for all in one trial."""

    attack: AttackOptions | None
    mean_rule: MeanRule | None
    shard_records: int | None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> AuditBlock:
        """From the audit's options, or from ``audit`` or ``split`` of a trial's inputs."""
        shards = block.get("shard_records")
        return cls(
            attack=_attack(block.get("attack")),
            mean_rule=_mean_rule(block.get("mean_rule")),
            shard_records=None if shards is None else int(shards),
        )

    def shards(self, records: int) -> Shards:
        """How so many audited records are divided."""
        most = self.shard_records or records
        return Shards(records=records, count=max(1, -(-records // most)))


def _attack(block: dps.FrozenMap | None) -> AttackOptions | None:
    if block is None:
        return None
    looks = block.get("looks")
    return AttackOptions(
        most=int(block.get("most", 1)),
        least=int(block.get("least", 1)),
        records=tuple(int(record) for record in block.get("records", ())),
        runs=int(block.get("runs", 20)),
        looks=None if looks is None else int(looks),
    )


def _mean_rule(block: dps.FrozenMap | None) -> MeanRule | None:
    if block is None:
        return None
    return MeanRule(
        batches=block["batches"],
        orders=block["orders"],
        points=int(block["points"]),
        outer=int(block["outer"]),
        inner=int(block["inner"]),
    )


@dataclass(frozen=True, kw_only=True)
class Shards:
    """``records`` audited records in ``count`` shards of neighbours, none more than one larger than another.

    Trial ``run * count + shard`` repeats the training of its run, draw for draw, and looks at the records of its shard
    alone: one look at all records of a large data set costs more than many steps of training. What is done once for a
    run is done by its first shard.
    """

    records: int
    count: int

    @property
    def largest(self) -> int:
        """How many records the largest shard has."""
        return -(-self.records // self.count)

    def places(self, shard: int) -> slice:
        """The places of a shard's records among those that are audited."""
        return slice(shard * self.records // self.count, (shard + 1) * self.records // self.count)

    def run_and_shard(self, index: int) -> tuple[int, int]:
        """The run and the shard of a trial."""
        return divmod(index, self.count)
