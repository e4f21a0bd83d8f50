"""Typed options of a spec with defaults: audited records, runs, composition. No torch or numerics."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING

#: Number of runs with a full log, and number of steps per run that are measured on all training records.
LOGGED_RUNS, MEASURED_STEPS = 2, 16

#: Direction in which all records of a population share the runs on the declared data. Removal compares the dataset with
#: the record to that without it, and expectations are over runs on the former.
SHARED_DIRECTION = {"train": "remove", "test": "add"}

#: Population of claims and quantiles if the spec lists points.
CHOSEN = "chosen"

#: Maximum number of shards of a run. Every shard repeats the training.
MOST_SHARDS = 1000


#: A score is stored as the number of these edges below it. Edges are natural logarithms of likelihood ratios.
EDGES = tuple(number / 64 for number in range(-1024, 1025))


@dataclass(frozen=True, kw_only=True)
class Audited:
    """``points`` are indices in the population, a range if all are audited, or a random sample (``sampled``)."""

    population: str
    size: int
    points: Sequence[int]
    sampled: bool
    directions: tuple[str, ...]

    @classmethod
    def of(cls, threat_model: Mapping[str, Any], facts: dps.Facts) -> "Audited":
        population, direction = str(threat_model.get("population", "train")), str(threat_model.get("direction", "both"))
        points, size = threat_model.get("points", "all"), population_size(threat_model, facts)
        places: Sequence[int] = range(size)
        if isinstance(points, Mapping):
            drawn = random.Random(int(points.get("seed", 0))).sample(places, min(int(points["count"]), size))
            places = tuple(sorted(drawn))
        elif not isinstance(points, str):
            places = tuple(int(point) for point in points)
        return cls(
            population=population,
            size=size,
            points=places,
            sampled=isinstance(points, Mapping),
            directions=("remove", "add") if direction == "both" else (direction,),
        )

    @property
    def shared_direction(self) -> str:
        return SHARED_DIRECTION[self.population]

    @property
    def needs_own_runs(self) -> bool:
        return any(direction != self.shared_direction for direction in self.directions)

    @property
    def widest_direction(self) -> str:
        return "both" if len(self.directions) == 2 else self.directions[0]

    @property
    def complete(self) -> bool:
        return len(self.points) == self.size

    @property
    def quantiles_of(self) -> str:
        return self.population if self.complete or self.sampled else CHOSEN

    @property
    def quantile_size(self) -> int:
        return len(self.points) if self.quantiles_of == CHOSEN else self.size


def population_size(threat_model: Mapping[str, Any], facts: dps.Facts) -> int:
    return facts.records if threat_model.get("population", "train") == "train" else facts.test_records


@dataclass(frozen=True, kw_only=True)
class Composition(kit.Options):
    """Composition of steps; ``exponent`` None is auto."""

    orders: tuple[float, ...]
    step_bound: str = "directional"
    observe_every: int
    exponent: float | None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> "Composition":
        composition = block.get("composition") or {}
        exponent = composition.get("exponent", "auto")
        return cls.fill(
            block,
            orders=tuple(sorted(map(float, block.get("orders", ())))),
            observe_every=int(composition.get("observe_every", 10)),
            exponent=None if exponent == "auto" else float(exponent),
        )

    def observed(self, steps: int) -> tuple[int, ...]:
        """The steps up to ``steps`` before which norms are measured: 1, 1 + every, ..."""
        return tuple(range(1, steps + 1, self.observe_every))


@dataclass(frozen=True, kw_only=True)
class AttackOptions(kit.Options):
    """``runs`` are per trial."""

    most: int = 1
    least: int = 1
    records: tuple[int, ...] = ()
    runs: int = 20

    @property
    def targets(self) -> int:
        return self.most + self.least + len(self.records)


@dataclass(frozen=True, kw_only=True)
class MeanRule(kit.Options):
    """``batches`` and ``orders`` are as written in the spec, because seeds depend on their text."""

    batches: tuple[Any, ...]
    orders: tuple[Any, ...]
    points: int
    outer: int
    inner: int


@dataclass(frozen=True, kw_only=True)
class AuditBlock(kit.Options):
    """The plugin's keys of ``audit``. ``shard_records`` None puts all records into one trial."""

    attack: AttackOptions | None = None
    mean_rule: MeanRule | None = None
    shard_records: int | None = None

    def shards(self, records: int) -> "Shards":
        most = self.shard_records or records
        return Shards(records=records, count=max(1, -(-records // most)))


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Contiguous shards. Trial ``run * count + shard`` repeats the training; the first shard does the work of a run."""

    records: int
    count: int

    def places(self, shard: int) -> slice:
        return slice(shard * self.records // self.count, (shard + 1) * self.records // self.count)

    def run_and_shard(self, index: int) -> tuple[int, int]:
        return divmod(index, self.count)


#: Default Renyi orders: the paper's orders, with intermediate ones for common noise multipliers.
ORDERS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)

_COMPOSITION: dict[str, dps.Json] = {
    **kit.block(
        "Composition of the steps' divergences.",
        exponent={
            "type": ["string", "number"],
            "pattern": "^auto$",
            "exclusiveMinimum": 1,
            "default": "auto",
            "description": "Exponent p > 1 of the composition theorem. auto: three times the number of steps.",
        },
        observe_every=kit.integer(
            "Number of steps between measurements of all records' gradient norms. The first is before step 1. In "
            "between, estimates use the last measurement, and confidence bounds the value of a saturated gradient.",
            least=1,
            most=1000000,
            default=10,
        ),
    ),
    "default": {},
}

MECHANISM: dict[str, dps.Json] = kit.block(
    None,
    ["noise_multiplier", "clip_norm", "sampling"],
    noise_multiplier=NOISE_MULTIPLIER,
    clip_norm=CLIP_NORM,
    sampling=SAMPLING,
    orders=kit.array(
        "Renyi orders of the composition; the best one counts. They change no trial.",
        kit.number("An order above 1, not necessarily an integer.", above=1, most=256),
        least=1,
        most=100,
        unique=True,
        default=list(ORDERS),
    ),
    step_bound=kit.choice(
        "Bound on a step. theorem: the paper's formula, equal in both directions. directional: a smaller value in "
        "direction add, which the paper's proof also gives.",
        "directional",
        "theorem",
        default="directional",
    ),
    composition=_COMPOSITION,
)

THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    population=kit.choice(
        "train: training records; the neighbor lacks the record. test: test records; the neighbor also has the record.",
        "train",
        "test",
        default="train",
    ),
    points={
        "type": ["string", "array", "object"],
        "default": "all",
        "pattern": "^all$",
        "minItems": 1,
        "maxItems": 100000,
        "uniqueItems": True,
        "items": kit.integer("Index of a record in the population.", least=0),
        "properties": {
            "count": kit.integer("Number of records, drawn without replacement.", least=1, most=100000000),
            "seed": kit.integer("Seed of the sample.", least=0, default=0),
        },
        "required": ["count"],
        "additionalProperties": False,
        "description": "Audited records of the population: all, {count, seed} or a list of indices.",
    },
)

_ATTACK: dict[str, dps.Json] = kit.block(
    "Also attack single records: many runs each include one record with probability 1/2, and the adversary sees every "
    "iterate.",
    most=kit.integer(
        "Number of audited records with the largest gradients in a pilot run to attack.", least=0, most=100, default=1
    ),
    least=kit.integer("Number of records with the smallest gradients to attack.", least=0, most=100, default=1),
    records=kit.array(
        "Indices of further records to attack.",
        kit.integer("An audited record.", least=0),
        most=100,
        unique=True,
        default=[],
    ),
    runs=kit.integer(
        "Number of attack runs per attacked record in each of audit.runs.", least=2, most=100000, default=20
    ),
)

_MEAN_RULE: dict[str, dps.Json] = kit.block(
    "Also estimate the privacy loss of one step with the same noise on the mean of its batch, at models of a run: an "
    "estimate for each expected batch size, not a bound.",
    ["batches"],
    batches=kit.array(
        "Expected batch sizes.", kit.number("An expected batch size.", above=0), least=1, most=20, unique=True
    ),
    orders=kit.array(
        "Integer Renyi orders.",
        kit.integer("A whole order.", least=2, most=256),
        least=1,
        most=20,
        unique=True,
        default=[8],
    ),
    points=kit.integer("Number of audited records, from the first.", least=1, most=100000, default=30),
    outer=kit.integer("Number of reference batches.", least=1, most=10000, default=20),
    inner=kit.integer("Number of tuples of batches per reference batch.", least=1, most=10000, default=20),
)

AUDIT: dict[str, dps.Json] = kit.block(
    None,
    attack=_ATTACK,
    mean_rule=_MEAN_RULE,
    shard_records=kit.integer(
        "Maximum number of audited records per trial. Each run becomes several trials that repeat its training and "
        "measure different records, so that workers share the work. By default one trial measures all records. It "
        "changes no seed.",
        least=1,
        most=100000000,
    ),
)
