"""What a spec declares: one step or a chain, the private mechanism, the collection, and what follows for tau."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec import kit
from dpspec_preprocessing.schema import OLD_REPAIRED
from dpspec_preprocessing.theory.declared_steps import Imputation, Projection, Scaling, Step, read_step
from dpspec_preprocessing.theory.private import Private, PrivateMechanism
from dpspec_preprocessing.theory.sensitivity import Sensitivity, repaired_sensitivity, tested_sensitivity

#: The neighbours of bounds for imputation where a replaced record misses what its replacement misses.
SAME_MASK = "same-missing-values"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The pre-processing and the private mechanism behind it, with what follows from both.

    collection: the declared limits, those left out omitted. radius: of the ball that records lie in.
    repaired: how far records move over the collection; None where only the group bound for all records is proved.
    """

    steps: tuple[Step, ...]
    private: PrivateMechanism
    collection: Mapping[str, Any]
    features: int
    radius: float
    repaired: Sensitivity | None

    @property
    def step(self) -> Step | None:
        """The only step, None for a chain, which has the group bound only."""
        return self.steps[0] if len(self.steps) == 1 else None

    @property
    def step_name(self) -> str | None:
        """What the only step does, for imputation what it imputes by; None for a chain."""
        return None if self.step is None else self.step.name

    @property
    def out_radius(self) -> float:
        """The radius of the ball that processed rows lie in."""
        return out_radius(self.steps, self.radius)

    @property
    def same_mask(self) -> bool:
        """Whether the repaired sensitivity is proved only for neighbours whose records miss the same entries."""
        return isinstance(self.step, Imputation) and self.step.by == "mean" and self.step.same_mask

    @property
    def is_smooth(self) -> bool:
        """Whether it is known how fast the mechanism's gradients move with records; always so for queries."""
        return math.isfinite(self.private.smooth)

    @property
    def tau(self) -> float | None:
        """The distance that the repaired curve is taken at; infinite where only group privacy is left."""
        return None if self.repaired is None else self.distance(self.repaired)

    @property
    def changed(self) -> float:
        """How many common records can differ at most: all of them where nothing is proved."""
        return self.private.records if self.repaired is None else min(self.repaired.changed, self.private.records)

    def distance(self, sensitivity: Sensitivity) -> float:
        """The distance that a sensitivity gives: :func:`distance_of`, infinite where gradients move in unknown ways."""
        return distance_of(self.private, sensitivity) if self.is_smooth else math.inf

    def tested(self) -> Sensitivity:
        """The sensitivity for pairs of which one lies inside the proposed limit and the other one record beyond."""
        assert self.step is not None
        return tested_sensitivity(self.step, self.collection, self.private.records, self.features, self.radius)


def distance_of(m: PrivateMechanism, sensitivity: Sensitivity) -> float:
    """tau, or for one-record batches n times the largest move of a record."""
    return m.records * sensitivity.moved if m.kind == "sgd-sampled" else sensitivity.tau


def out_radius(steps: Sequence[Step], radius: float) -> float:
    """The radius of the ball that rows of norm ``radius`` at most lie in after all steps.

    Imputation cuts rows back to ``radius``, scaling to its clip, whatever was before them. Merging and projecting leave
    norms as they are, or smaller. A projection around the mean m makes P x + (I - P) m of x, two vectors at a right
    angle, both within the ball that it is fitted to: sqrt(2) times its radius.
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
class Test:
    """Propose, test, release (``ptr``): what the test costs, and the delta that is the guarantee's too."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One value of the declaration, ``over``, replaced by each of several."""

    over: str
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """The parameters that Table 2 is also drawn up for."""

    order: float
    changed: int
    eta: float
    ball: int
    eigengap: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Declaration(kit.Options):
    """The block ``mechanism``. Trials read no more of it than steps, private, collection, radius, clip_rows and test.

    collection: as it is written, because limits are looked up, swept and compared by their names; those left out are
    omitted. also: ways of accounting beside the chosen one. orders: ascending.
    """

    steps: tuple[Step, ...]
    private: Private
    collection: dps.FrozenMap
    radius: float
    clip_rows: bool
    accounting: str
    also: tuple[str, ...]
    orders: tuple[float, ...]
    test: Test | None
    sweep: Sweep | None
    table: PaperTable | None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Declaration:
        """From the mechanism's options."""
        test, sweep, table = (block.get(key) for key in ("ptr", "sweep", "table"))
        limits, accounting = block.get("collection") or {}, block.get("accounting", "repaired")
        return cls(
            steps=tuple(map(read_step, block.get("pipeline", ()))),
            private=Private.of(block["private"]),
            collection=dps.FrozenMap({key: limit for key, limit in limits.items() if limit is not None}),
            radius=float(block.get("radius", 1.0)),
            clip_rows=bool(block.get("clip_rows", False)),
            accounting="repaired" if accounting == OLD_REPAIRED else str(accounting),
            also=tuple(block.get("also", ())),
            orders=tuple(sorted(float(order) for order in block.get("orders", ()))),
            test=Test(epsilon=float(test["epsilon"]), delta=float(test["delta"])) if test else None,
            sweep=Sweep(over=str(sweep["over"]), values=tuple(map(float, sweep["values"]))) if sweep else None,
            table=_table(table) if table else None,
        )

    @property
    def processed_norm(self) -> float:
        """The norm of processed rows at most."""
        return out_radius(self.steps, self.radius)

    def pipeline(self, records: int, features: int) -> Pipeline:
        """What follows for so many records and features."""
        steps, limits, single = self.steps, self.collection, len(self.steps) == 1
        return Pipeline(
            steps=steps,
            private=self.private.mechanism(records, self.processed_norm),
            collection=limits,
            features=features,
            radius=self.radius,
            repaired=repaired_sensitivity(steps[0], limits, records, features, self.radius) if single else None,
        )


def _table(block: dps.FrozenMap) -> PaperTable:
    return PaperTable(
        order=float(block["order"]),
        changed=int(block["changed"]),
        eta=float(block["eta"]),
        ball=int(block["ball"]),
        eigengap=float(block["eigengap"]),
        steps=int(block["steps"]),
    )


@dataclass(frozen=True, kw_only=True)
class AuditBlock(kit.Options):
    """The plugin's own keys of ``audit``; None for what is not declared, and ``planted`` for what is taken then."""

    repeats: int
    clusters: int | None
    members: int | None

    @classmethod
    def read(cls, block: dps.FrozenMap) -> AuditBlock:
        """From the audit's options, or ``audit`` of a trial's inputs."""
        clusters, members = block.get("clusters"), block.get("members")
        return cls(
            repeats=int(block.get("repeats", 1)),
            clusters=None if clusters is None else int(clusters),
            members=None if members is None else int(members),
        )

    @property
    def planted(self) -> tuple[int, int]:
        """How many clusters are planted, and how many near-duplicates each of them has."""
        return self.clusters or 5, self.members or 3


def claimed_orders(spec: dps.Spec) -> list[float]:
    """The Renyi orders that claims name, smallest first."""
    return sorted({float(claim["alpha"]) for claim in spec.claims if claim.kind == "renyi-dp"})


def bound_scope(
    spec: dps.Spec, m: PrivateMechanism, *, data: str, neighbours: str = "all", min_records: int = 0
) -> dps.Scope:
    """What a bound speaks of: records are replaced by records, and only the mechanism's output is seen.

    min_records: the declared number, where noise or sensitivity shrink with it. Group privacy for all records holds for
    fewer of them too, and a declared collection has data sets of the declared number only.
    """
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
