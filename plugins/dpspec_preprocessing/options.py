"""The declared pipeline: steps, private mechanism, collection, and the distance tau that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.private import Private, PrivateMechanism
from dpspec_preprocessing.schema import OLD_REPAIRED
from dpspec_preprocessing.sensitivity import (
    Imputation,
    Projection,
    Scaling,
    Sensitivity,
    Step,
    read_step,
    repaired_sensitivity,
)

#: Neighbour relation: the replaced record and its replacement have the same missing entries.
SAME_MASK = "same-missing-values"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Steps and private mechanism for data of known size.

    ``repaired`` is the sensitivity over the collection; None if only the group bound for all records is proved.
    """

    steps: tuple[Step, ...]
    private: PrivateMechanism
    collection: Mapping[str, Any]
    features: int
    radius: float
    repaired: Sensitivity | None

    @property
    def step(self) -> Step | None:
        return self.steps[0] if len(self.steps) == 1 else None

    @property
    def step_name(self) -> str | None:
        """The statistic for imputation."""
        return None if self.step is None else self.step.name

    @property
    def out_radius(self) -> float:
        return out_radius(self.steps, self.radius)

    @property
    def same_mask(self) -> bool:
        return isinstance(self.step, Imputation) and self.step.name == "mean" and self.step.same_mask

    @property
    def is_smooth(self) -> bool:
        return math.isfinite(self.private.smooth)

    @property
    def tau(self) -> float | None:
        """Distance at which the repaired curve is evaluated; infinite if only group privacy holds."""
        return None if self.repaired is None else self.distance(self.repaired)

    @property
    def changed(self) -> float:
        """Maximum number of common records that differ."""
        return self.private.records if self.repaired is None else min(self.repaired.changed, self.private.records)

    def distance(self, sensitivity: Sensitivity) -> float:
        return distance_of(self.private, sensitivity) if self.is_smooth else math.inf


def distance_of(m: PrivateMechanism, sensitivity: Sensitivity) -> float:
    """Tau, or n times the maximum displacement of a record for one-record batches."""
    return m.records * sensitivity.moved if m.kind == "sgd-sampled" else sensitivity.tau


def out_radius(steps: Sequence[Step], radius: float) -> float:
    """Maximum norm after all steps of rows with norm at most ``radius``.

    Imputation and scaling clip rows. A projection around the mean m maps x to P x + (I - P) m, the sum of two
    orthogonal vectors inside the ball: sqrt(2) times its radius. Other steps do not increase norms.
    """
    reach = radius
    for step in steps:
        if isinstance(step, Imputation):
            reach = radius
        elif isinstance(step, Scaling):
            reach = step.clip
        elif isinstance(step, Projection) and step.affine:
            reach *= math.sqrt(2.0)
    return reach


@dataclass(frozen=True, kw_only=True)
class Test(kit.Options):
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Sweep(kit.Options):
    over: str
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PaperTable(kit.Options):
    order: float
    changed: int
    eta: float
    ball: int
    eigengap: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Declaration(kit.Options):
    """The block ``mechanism``. Trials read only steps, private, collection, radius, clip_rows and ptr."""

    steps: tuple[Step, ...]
    private: Private
    collection: dps.FrozenMap
    radius: float = 1.0
    clip_rows: bool = False
    accounting: str
    also: tuple[str, ...] = ()
    orders: tuple[float, ...]
    ptr: Test | None = None
    sweep: Sweep | None = None
    table: PaperTable | None = None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Declaration:
        limits, accounting = block.get("collection") or {}, block.get("accounting", "repaired")
        return cls.fill(
            block,
            steps=tuple(map(read_step, block.get("pipeline", ()))),
            collection=dps.FrozenMap({key: limit for key, limit in limits.items() if limit is not None}),
            accounting="repaired" if accounting == OLD_REPAIRED else accounting,
            orders=tuple(sorted(map(float, block.get("orders", ())))),
        )

    @property
    def processed_norm(self) -> float:
        return out_radius(self.steps, self.radius)

    def pipeline(self, records: int, features: int) -> Pipeline:
        steps, limits, single = self.steps, self.collection, len(self.steps) == 1
        return Pipeline(
            steps=steps,
            private=self.private.mechanism(records, self.processed_norm),
            collection=limits,
            features=features,
            radius=self.radius,
            repaired=repaired_sensitivity(steps[0], limits, records, features, self.radius) if single else None,
        )


@dataclass(frozen=True, kw_only=True)
class AuditBlock(kit.Options):
    repeats: int = 1
    clusters: int | None = None
    members: int | None = None

    @property
    def cluster_layout(self) -> tuple[int, int]:
        return self.clusters or 5, self.members or 3


def claimed_orders(spec: dps.Spec) -> list[float]:
    return sorted({float(claim["alpha"]) for claim in spec.claims if claim.kind == "renyi-dp"})


def bound_scope(
    spec: dps.Spec, m: PrivateMechanism, *, data: str, neighbours: str = "all", min_records: int = 0
) -> dps.Scope:
    return dps.Scope(
        adjacency="replace-one",
        unit=spec.threat_model.unit,
        direction="both",
        access="final-model" if m.kind == "sgd-iterated" else "all-iterates",
        adversary="record",
        data=data,
        min_records=min_records,
        neighbours=neighbours,
    )
