"""What a spec asks for, with its defaults: which records, which runs, how steps compose. No torch, no numerics."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dpspec.contract as dps

if TYPE_CHECKING:
    from dpspec.accounting.checks import Direction

#: So many runs tell how the pipeline ran, and so many steps of each are measured from outside, on all training records.
LOGGED, LOOKS = 2, 16

#: The direction whose runs are the same for all records of a population: those on the data as declared. Removing a
#: record compares with-it to without-it, and expectations are over runs on the first.
SHARED = {"train": "remove", "test": "add"}

#: The population of claims and quantiles where points are listed one by one.
CHOSEN = "chosen"

#: Spec words and the accountant's: remove is D(with || without).
DIRECTIONS: Mapping[str, Direction] = {"remove": "present-first", "add": "absent-first"}


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
    def known(self) -> Collection[int]:
        """The same, to ask whether a record is among them."""
        return self.points if isinstance(self.points, range) else frozenset(self.points)

    @property
    def shared(self) -> str:
        """The direction that runs on the declared data serve, for all records at once."""
        return SHARED[self.population]

    @property
    def own(self) -> bool:
        """Whether every record also needs runs on data of its own."""
        return any(direction != self.shared for direction in self.directions)

    @property
    def whole(self) -> str:
        """The widest direction that is audited."""
        return "both" if len(self.directions) == 2 else self.directions[0]

    @property
    def complete(self) -> bool:
        """Whether every record of the population is audited."""
        return len(self.points) == self.size

    @property
    def named(self) -> str:
        """What quantiles are of: the population, or the records that were ``chosen`` one by one."""
        return self.population if self.complete or self.sampled else CHOSEN

    @property
    def extent(self) -> int:
        """How many records quantiles are of."""
        return len(self.points) if self.named == CHOSEN else self.size


def audited_of(threat: Mapping[str, Any], records: int, test_records: int) -> Audited:
    """From a document's ``threat_model`` (or a trial's inputs) and the sizes of the data's two parts."""
    population = str(threat.get("population", "train"))
    size = records if population == "train" else test_records
    direction = str(threat.get("direction", "both"))
    asked = threat.get("points", "all")
    points: Sequence[int]
    if isinstance(asked, str):
        points = range(size)
    elif isinstance(asked, Mapping):
        count = min(int(asked["count"]), size)
        points = sorted(random.Random(int(asked.get("seed", 0))).sample(range(size), count))
    else:
        points = [int(point) for point in asked]
    return Audited(
        population=population,
        size=size,
        points=points if isinstance(points, range) else tuple(points),
        sampled=isinstance(asked, Mapping),
        directions=("remove", "add") if direction == "both" else (direction,),
    )


def audited_of_spec(spec: dps.Spec, facts: dps.Facts) -> Audited:
    """The same of a spec."""
    threat = {**spec.threat_model.options, "direction": spec.threat_model.direction}
    return audited_of(threat, facts.records, facts.test_records)


def rate_and_noise(phase: Mapping[str, Any]) -> tuple[float, float]:
    """With which probability a record is drawn in a step of the phase, and the noise in clip norms."""
    sampling = phase["sampling"]
    return float(sampling["rate"]) if sampling["scheme"] == "poisson" else 1.0, float(phase["noise_multiplier"])


def observed_steps(steps: int, every: int) -> tuple[int, ...]:
    """The steps before which norms are measured: 1, 1 + every, ..."""
    return tuple(range(1, steps + 1, every))


def observe_every(mechanism: Mapping[str, Any]) -> int:
    """How many steps lie between observations."""
    return int((mechanism.get("composition") or {}).get("observe_every", 10))


def exponent(mechanism: Mapping[str, Any], steps: int) -> float | tuple[float, ...]:
    """The p of the composition theorem, or several, the last step's first; unless given 3 times the number of steps."""
    asked = (mechanism.get("composition") or {}).get("exponent", "auto")
    if isinstance(asked, str):
        return 3.0 * steps
    return tuple(map(float, asked)) if isinstance(asked, list | tuple) else float(asked)


def orders(mechanism: Mapping[str, Any]) -> tuple[float, ...]:
    """Renyi orders, ascending."""
    return tuple(sorted(float(order) for order in mechanism["orders"]))


@dataclass(frozen=True, kw_only=True)
class Attack:
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


def attack_of(audit: Mapping[str, Any]) -> Attack | None:
    """From a document's ``audit`` or a trial's inputs; None where nothing is attacked."""
    asked = audit.get("attack")
    if asked is None:
        return None
    looks = asked.get("looks")
    return Attack(
        most=int(asked.get("most", 1)),
        least=int(asked.get("least", 1)),
        records=tuple(int(record) for record in asked.get("records", ())),
        runs=int(asked.get("runs", 20)),
        looks=None if looks is None else int(looks),
    )
