"""What a spec declares: one step or a chain, the private mechanism, the collection, and what follows for tau."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps
from dpspec_preprocessing import lemmas, sensitivity
from dpspec_preprocessing.private import GRADIENT, Private
from dpspec_preprocessing.sensitivity import Sensitivity
from dpspec_preprocessing.steps import name

#: The keys of a collection that each step's certified bound needs.
NEEDS: dict[str, tuple[str, ...]] = {
    "mean": ("max_missing_rows", "min_observed"),
    "median": ("max_missing_rows", "max_spread"),
    "trimmed": ("max_missing_rows", "min_observed", "max_spread"),
    "regression": ("max_missing_rows", "min_eigenvalue", "max_eigenvalue"),
    "deduplicate": ("max_ball",),
    "quantise": ("max_ball",),
    "pca": ("min_eigengap",),
    "scale": ("min_std",),
}

#: Steps of which the distance to the collection's edge is known, so that ptr can test it.
TESTABLE = ("mean", "deduplicate", "quantise", "pca")

#: The delta of tables where no claim names one.
DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The whole declaration, with what follows from it.

    step: the one step, or None for a chain, which has the group bound only.
    certified: how far records move over the collection; None where only the group bound for all records is proved.
    printed, theorem: as the paper has it, for Table 2 and for Theorem 2; None where it has no entry.
    refuted: why the printed numbers are refuted, or None.
    """

    steps: tuple[Mapping[str, Any], ...]
    private: Private
    collection: Mapping[str, Any]
    features: int
    radius: float
    certified: Sensitivity | None
    printed: Sensitivity | None
    theorem: Sensitivity | None
    refuted: str | None

    @property
    def step(self) -> Mapping[str, Any] | None:
        """The only step, None for a chain."""
        return self.steps[0] if len(self.steps) == 1 else None

    @property
    def tau(self) -> float | None:
        """The distance that the certified curve is taken at: for one-record batches n times the largest move.

        Infinite where nothing is known of how gradients move with records: group privacy for all that change.
        """
        if self.certified is None:
            return None
        return math.inf if math.isinf(self.private.smooth) else distance(self.private, self.certified)

    @property
    def changed(self) -> float:
        """How many common records can differ at most: all of them where nothing is proved."""
        return self.private.records if self.certified is None else min(self.certified.changed, self.private.records)


def distance(m: Private, s: Sensitivity) -> float:
    """tau, or for one-record batches n times the largest move of a record."""
    return m.records * s.moved if m.kind == "sgd-sampled" else s.tau


def kind_of(step: Mapping[str, Any]) -> str:
    """The step's name, and for imputation what it imputes by."""
    return str(step["impute"]) if "impute" in step else name(step)


def private_of(block: Mapping[str, Any], records: int, *, changed: float = 0.0) -> Private:
    """The private mechanism of a ``private`` block; constants of a known loss follow from the parameters' radius."""
    lipschitz, smooth = constants(block)
    return Private(
        kind=str(block["kind"]),
        noise=float(block["eps_noise"]),
        records=records,
        lipschitz=lipschitz,
        smooth=smooth,
        sensitivity=float(block.get("sensitivity", 1.0)),
        steps=int(block.get("steps", 1)),
        factor=float(block.get("factor", 4.0)),
        changed=changed,
    )


def constants(block: Mapping[str, Any]) -> tuple[float, float]:
    """L and mu: declared, or those of the declared loss; mu is infinite where nothing is known of it."""
    if str(block["kind"]) not in GRADIENT:
        return float(block.get("lipschitz", 1.0)), 1.0
    known = {"logistic": lemmas.logistic, "squared": lemmas.squared}.get(str(block.get("loss")))
    derived = known(float(block.get("theta_radius", 1.0))) if known else (1.0, math.inf)
    return float(block.get("lipschitz", derived[0])), float(block.get("smooth", derived[1]))


def is_network(block: Mapping[str, Any]) -> bool:
    """Whether a ``private`` block trains the spec's own model, of whose gradients no constant is known here."""
    return block.get("loss") == "cross-entropy"


def radius_of(mechanism: Mapping[str, Any]) -> float:
    """The radius of the ball that records lie in."""
    return float(mechanism.get("radius", 1.0))


def pipeline_of(mechanism: Mapping[str, Any], facts: dps.Facts) -> Pipeline:
    """From the mechanism's block, defaults filled in, and the public facts."""
    return build(mechanism, facts.records, facts.features)


def build(mechanism: Mapping[str, Any], records: int, features: int) -> Pipeline:
    """The same for a number of records and features."""
    steps = tuple(mechanism["pipeline"])
    collection = {k: v for k, v in (mechanism.get("collection") or {}).items() if v is not None}
    radius = radius_of(mechanism)
    certified, printed, theorem, refuted = None, None, None, None
    if len(steps) == 1:
        known = _Known(steps[0], collection, records, features, radius)
        certified, printed, theorem, refuted = known.certified(), known.printed(), known.theorem(), known.refuted()
    changed = min(printed.changed, records) if printed is not None else 0.0
    m = private_of(mechanism["private"], records, changed=changed)
    if math.isinf(m.smooth):
        printed, theorem = None, None
    return Pipeline(
        steps=steps,
        private=m,
        collection=collection,
        features=features,
        radius=radius,
        certified=certified,
        printed=printed,
        theorem=theorem,
        refuted=refuted,
    )


@dataclass(frozen=True)
class _Known:
    """What is known of one step on a collection."""

    step: Mapping[str, Any]
    collection: Mapping[str, Any]
    records: int
    features: int
    radius: float

    def certified(self) -> Sensitivity | None:
        """The proved sensitivity, or None where the collection leaves out what it needs."""
        c, by = self.collection, kind_of(self.step)
        if not all(key in c for key in NEEDS[by]):
            return None
        if by == "pca":
            gap = float(c["min_eigengap"])
            found = sensitivity.affine_pca if self.step.get("affine") else sensitivity.pca
            return found(gap, self.records, self.radius)
        if by == "scale":
            return sensitivity.scaling(float(c["min_std"]), self.records, self.radius)
        if by in ("deduplicate", "quantise"):
            changed = min(float(self.records), sensitivity.clusters(int(c["max_ball"])))
            return Sensitivity(changed, self.radius if by == "deduplicate" else 2.0 * float(self.step[by]))
        return Sensitivity(float(c["max_missing_rows"]), min(2.0 * self.radius, self._imputed(by)))

    def _imputed(self, by: str) -> float:
        c, q = self.collection, int(self.collection.get("max_missing_in_row", self.features))
        if by == "mean":
            observed = int(c["min_observed"])
            if self.step.get("mask") == "same":
                return sensitivity.mean_same_mask(observed, self.radius)
            return sensitivity.mean_any_mask(observed, self.features, c.get("max_mean_norm"), self.radius)
        if by == "median":
            return sensitivity.median(float(c["max_spread"]), q)
        if by == "trimmed":
            spread, trim = float(c["max_spread"]), int(self.step["trim"])
            return sensitivity.trimmed_mean(spread, int(c["min_observed"]), trim, q)
        scale = self.radius
        least, largest = float(c["min_eigenvalue"]) / scale**2, float(c["max_eigenvalue"]) / scale**2
        return scale * sensitivity.regression(least, largest, q)

    def printed(self) -> Sensitivity | None:
        """What Table 2 takes: Delta_inf, and tau / Delta_inf; None where it has no column or a key is missing."""
        c, by = self.collection, kind_of(self.step)
        if self.radius != 1.0 or self.step.get("affine"):
            return None
        if by == "mean" and "max_missing_rows" in c:
            missing = int(c["max_missing_rows"])
            return Sensitivity(missing, sensitivity.mean_printed(self.records, missing))
        if by in ("deduplicate", "quantise") and "max_cluster" in c:
            changed = sensitivity.clusters_printed(int(c["max_cluster"]))
            return Sensitivity(changed, 1.0 if by == "deduplicate" else float(self.step[by]))
        if by == "pca" and "min_eigengap" in c and self.records >= 101:
            return Sensitivity(self.records, 12.2 / float(c["min_eigengap"]) / self.records)
        return None

    def theorem(self) -> Sensitivity | None:
        """What Theorem 2 takes: Table 2's, Proposition 5's for a projection, and Table 3's for other imputations."""
        c, by = self.collection, kind_of(self.step)
        if self.radius != 1.0 or self.step.get("affine") or by == "scale" or not all(key in c for key in NEEDS[by]):
            return None
        missing = float(c.get("max_missing_rows", 0))
        if by == "pca":
            return sensitivity.pca_printed(float(c["min_eigengap"]), self.records)
        if by == "median":
            return Sensitivity(missing, sensitivity.median(float(c["max_spread"])))
        if by == "trimmed":
            observed = self.records - int(missing)
            return Sensitivity(missing, sensitivity.trimmed_mean(float(c["max_spread"]), observed, self.step["trim"]))
        if by == "regression":
            eigenvalues = float(c["min_eigenvalue"]), float(c["max_eigenvalue"])
            return Sensitivity(missing, sensitivity.regression_printed(*eigenvalues))
        return self.printed()

    def refuted(self) -> str | None:
        """Why the printed sensitivity is refuted."""
        by = kind_of(self.step)
        if by == "mean":
            return None if self.step.get("mask") == "same" else sensitivity.REFUTED["impute-any"]
        return sensitivity.REFUTED.get(by)


def claimed_deltas(spec: dps.Spec) -> list[float]:
    """The deltas that claims name, or one; smallest first."""
    found = {float(c["delta"]) for c in spec.claims if c.kind == "approx-dp"}
    return sorted(found or {DEFAULT_DELTA})


def scope(spec: dps.Spec, m: Private, *, data: str) -> dps.Scope:
    """What a bound speaks of: records are replaced by records, and only the mechanism's output is seen."""
    return dps.Scope(
        adjacency="replace-one",
        unit=spec.threat_model.unit,
        direction="both",
        access="final-model" if m.kind == "sgd-iterated" else "all-iterates",
        adversary="record",
        data=data,
    )
