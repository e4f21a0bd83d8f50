"""Typed options of a spec with defaults, and located messages for specs that the theory or the attack does not cover.

No torch, data or numerics.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING
from dpspec.training.providers import optimizer_kind

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
        records: Sequence[int] = range(size)
        if isinstance(points, Mapping):
            drawn = random.Random(int(points.get("seed", 0))).sample(records, min(int(points["count"]), size))
            records = tuple(sorted(drawn))
        elif not isinstance(points, str):
            records = tuple(int(point) for point in points)
        return cls(
            population=population,
            size=size,
            points=records,
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


#: Maximum number of records that need separate runs on modified data.
MOST_OWN_RUNS = 256

#: Largest tabulated order.
MOST_ORDER = 512

#: Maximum bytes of clipped gradients of the mean rule, which holds all gradients in memory.
MOST_BYTES = 2**30

#: Minimum number of runs per record with which an attack can prove anything.
LEAST_RUNS = 16


def check_spec(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    help = "it compares a dataset with the same dataset plus or minus one record"
    yield from dps.other_adjacencies(spec, "add-remove", "the per-instance theory", help)
    if spec.threat_model.group_size != (1,):
        message = "the per-instance theory covers single records, not groups"
        yield kit.unsupported(message, ("threat_model", "group_size"), "audit groups with mechanism.kind group")
    for i, phase in enumerate(spec.phases):
        yield from kit.other_scheme(
            spec,
            i,
            dps.Sampling.INDEPENDENT,
            "sampling.scheme must be poisson or full, got {scheme}: the theory needs records to be drawn independently",
            "write sampling: {scheme: poisson, rate: ...} if the training samples this way",
        )
        if phase.noiseless:
            message = "noise_multiplier must be above 0: a step without noise has no finite divergence"
            yield kit.bad_value(message, dps.in_phase(spec, i, "noise_multiplier"), "write a noise_multiplier above 0")
        yield from kit.too_little_noise(phase.noise_multiplier, dps.in_phase(spec, i, "noise_multiplier"))
    composition = Composition.of(spec.mechanism.options)
    if composition.exponent is not None:
        growth = min(700.0, -math.log1p(-1.0 / composition.exponent) * (spec.steps - 1))
        first_order = 1.0 + (composition.orders[-1] - 1.0) * math.exp(growth)  # the largest order of the recursion
        if first_order > MOST_ORDER:
            message = f"exponent needs order {first_order:.2g} at the first of {spec.steps} steps: at most {MOST_ORDER}"
            help = "auto uses three times the number of steps, which keeps orders within 1.4 times the requested ones"
            yield kit.bad_value(message, ("mechanism", "composition", "exponent"), help)
    wrong_points = list(_refuse_points(spec, facts))
    yield from wrong_points
    if wrong_points:
        return
    audited = Audited.of(spec.document["threat_model"], facts)
    for i, claim in enumerate(spec.claims):
        if claim.record is not None:
            yield from _refuse_other_record(audited, claim.record, ("claims", i, "record"))
        if "fraction" in claim.options and claim["population"] != audited.quantiles_of:
            yield dps.Diagnostic(
                code="bad-choice",
                message=f"the audited population is {audited.quantiles_of!r}, not {claim['population']!r}",
                path=("claims", i, "population"),
                help=f"write population: {audited.quantiles_of}, or audit points: all, or a random sample "
                f"{{count, seed}}, of threat_model.population: {claim['population']}",
            )
    if spec.audit is not None:
        options = AuditBlock.of(spec.audit.options)
        yield from _refuse_training(spec, spec.audit, facts, audited)
        if options.attack is not None:
            yield from _refuse_attack(spec, spec.audit.runs, options.attack, audited)
        if options.mean_rule is not None:
            yield from _refuse_mean_rule(options.mean_rule, facts)


def _refuse_points(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("threat_model", "points")
    threat_model = spec.document["threat_model"]
    population, points = threat_model.get("population", "train"), threat_model.get("points", "all")
    size = population_size(threat_model, facts)
    if size == 0:
        message = "the data has no test records to audit"
        yield kit.bad_value(message, ("threat_model", "population"), "write population: train, or split the data")
    elif isinstance(points, Mapping):
        if points["count"] > size:
            message = f"count {points['count']} exceeds the {size} {population} records"
            yield kit.bad_value(message, (*path, "count"))
    elif not isinstance(points, str):
        for i, point in enumerate(points):
            if point >= size:
                yield kit.bad_value(
                    f"record {point} lies outside the data: there are {size} {population} records, counted from 0",
                    (*path, i),
                )


def _refuse_other_record(audited: Audited, record: int, path: dps.Path) -> Iterator[dps.Diagnostic]:
    if record not in audited.points:
        message = f"record {record} is not among the audited {audited.population} records"
        yield kit.bad_value(message, path, "add it to threat_model.points")


def _refuse_training(
    spec: dps.Spec, audit: dps.AuditOptions, facts: dps.Facts, audited: Audited
) -> Iterator[dps.Diagnostic]:
    optimizer = optimizer_kind(spec.training.options)
    if optimizer != "sgd":
        yield kit.unsupported(
            f"training.optimizer must be sgd: {optimizer} keeps additional state, and the composition theorem only "
            "covers released models",
            ("training", "optimizer"),
            "train with sgd; the data-independent bound of mechanism.kind group holds for every optimizer",
        )
    if audit.method != "many-run" or audit.options.get("canary") is not None:
        message = "per-instance audits average over independent runs and insert no canaries"
        help = "write method: many-run and runs, without canary; audit.attack attacks records of the data"
        yield kit.unsupported(message, ("audit", "canary" if audit.method == "many-run" else "method"), help)
    shards, record_count = AuditBlock.of(audit.options).shards(len(audited.points)), len(audited.points)
    if shards.count > MOST_SHARDS:
        yield kit.bad_value(
            f"{audit.options['shard_records']} of {shards.records} records in each trial make "
            f"{shards.count} trials of every run, which all repeat the training: at most {MOST_SHARDS}",
            ("audit", "shard_records"),
            f"write shard_records: {-(-shards.records // MOST_SHARDS)} or more, or remove it",
        )
    yield from dps.untrainable(spec, facts, ["iterates"])
    if audited.needs_own_runs and record_count > MOST_OWN_RUNS:
        yield kit.bad_value(
            f"direction {audited.widest_direction} needs separate runs on modified data for each of {record_count} "
            f"records: at most {MOST_OWN_RUNS}",
            ("threat_model", "direction"),
            f"write direction: {audited.shared_direction}, in which all records share runs, or list fewer points",
        )


def _refuse_attack(spec: dps.Spec, runs: int, attack: AttackOptions, audited: Audited) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("audit", "attack")
    chosen, points = attack.most + attack.least, len(audited.points)
    if attack.targets == 0 or chosen > points:
        yield kit.bad_value(
            f"audit.attack must select a record, and at most the {points} audited ones, got {attack.most} most and "
            f"{attack.least} least exposed records",
            path,
            "set most, least or records, or remove attack",
        )
    for i, record in enumerate(attack.records):
        yield from _refuse_other_record(audited, record, (*path, "records", i))
    if attack.runs * runs < LEAST_RUNS:
        yield kit.bad_value(
            f"{attack.runs} runs of each record in each of {runs} runs are fewer than "
            f"{LEAST_RUNS} and cannot prove anything",
            (*path, "runs"),
        )
    if spec.threat_model.access != "all-iterates":
        message = "audit.attack scores every iterate, and the threat model releases the final model only"
        yield kit.unsupported(message, ("threat_model", "access"), "remove audit.attack, or write access: all-iterates")


def _refuse_mean_rule(mean_rule: MeanRule, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    path: dps.Path = ("audit", "mean_rule")
    for i, batch in enumerate(mean_rule.batches):
        if batch > facts.records:
            yield kit.bad_value(
                f"an expected batch size of {batch:g} exceeds the {facts.records} training records",
                (*path, "batches", i),
            )
    if 4 * facts.records * (facts.parameters or 0) > MOST_BYTES:
        yield kit.bad_value(
            f"the mean rule needs the clipped gradients of all {facts.records} records in memory, "
            f"{facts.parameters} numbers each: more than 1 GiB",
            path,
            "remove mean_rule, or use fewer records or a smaller model",
        )
