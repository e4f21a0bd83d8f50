"""A mechanism with an attack on releases whose inclusion bits core draws."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import dpspec.contract as dps
from dpspec.kit.findings import coins, lower_from
from dpspec.kit.simple import SimpleMechanism, conditions
from dpspec.kit.specs import integer
from dpspec.kit.trials import chunks

if TYPE_CHECKING:
    import numpy as np

#: Resolution of score levels: absolute near 0, relative for large scores.
_STEPS = 256

#: Maximum level, a score of about 1e300.
_TOP = 180_000

_COINS = coins("each group is planted by an independent fair coin")


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Observations of one trial for one group size: one release per inclusion bit.

    Attributes:
        scores: Evidence (n,) that the group was inserted, ideally the log-likelihood ratio. Must not depend on the
            bits.
        noise: Added noise (m,) in units of the declared scale, as drawn or as observed. Core tests its distribution.
        told: Further numbers by name; :meth:`AttackedMechanism.further_checks` receives their sums over all releases.
    """

    scores: np.ndarray[Any, Any]
    noise: np.ndarray[Any, Any]
    told: Mapping[str, float] = field(default_factory=dict)


class AttackedMechanism(SimpleMechanism):
    """A :class:`SimpleMechanism` with an attack; core draws inclusion bits, tests, and bounds epsilon from below.

    Attributes:
        noise: Declared distribution of ``Releases.noise``: independent ``gaussian`` (standard normal) or ``laplace``
            (scale 1). Every run is checked against it.
        seconds: Seconds per release, for plans.
        adversary: Adversary of the attack (``dps.Scope``), who knows the data except the group.
        access: What the adversary sees.
    """

    noise: ClassVar[str]
    seconds: ClassVar[float] = 1e-5
    adversary: ClassVar[str] = "record"
    access: ClassVar[str] = "final-model"
    attack: ClassVar[str] = "scores of real releases"
    audit_schema: ClassVar[Mapping[str, dps.Json]] = {
        "method": {"enum": ["many-run"], "description": "Many releases, with the group or without by a fair coin."},
        "releases": integer("How many releases each run makes of each group size.", least=2, most=10**6, default=2000),
    }

    @abstractmethod
    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: np.ndarray[Any, Any]
    ) -> Releases:
        """Make and score one independent release per inclusion bit.

        Args:
            inputs: ``mechanism``, ``threat_model``, ``audit``, ... of the spec.
            context: Provides seeds; all randomness must derive from ``context.seed(index, ...)``.
            index: The trial.
            group_size: Size of the group.
            coins: Inclusion bits (n,): the group is inserted at 1.
        """

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        """Number of values in ``Releases.noise`` per release, for the plan's detection limits. Default: one."""
        return 1

    def further_checks(self, spec: dps.Spec, told: Mapping[str, float] | None) -> Iterable[dps.Check]:
        """Additional tests of the executed run from the sums of ``Releases.told`` by name. Default: none.

        told: None for a plan, which must yield the same checks with p-value 1 and no measurement.
        """
        return ()

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Require rows. Extend this for errors that the schema cannot express."""
        if spec.audit is not None and facts.digest is None:
            yield dps.Diagnostic(
                code="data-not-at-hand",
                message="data that is only declared can be bounded, not attacked",
                path=("audit",),
                help="leave audit out, or name the data",
            )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One chunk per run, and the largest epsilon that perfect guesses would show."""
        if spec.audit is None:
            return super().plan(spec, facts)
        from dpspec.stats.attacks import evidence_tests

        made = spec.audit.runs * int(spec.audit.options["releases"])
        sizes, power = spec.threat_model.group_size, []
        for size in sizes:
            best = _evidence(self, spec, size, "0" * (made - made // 2) + "1" * (made // 2))
            for delta in _deltas(spec, size):
                largest = evidence_tests.largest(best, delta, spec.audit.confidence)
                at = dps.FrozenMap({"delta": delta, "group_size": size})
                power.append(dps.Power(at=at, epsilon=largest, method=f"many-run, {made} releases"))
        numbers = made * len(sizes) * self.noise_numbers(spec, facts)
        return dps.Plan(
            chunks=chunks(spec.audit.runs),
            seconds=self.seconds * made * len(sizes),
            memory_bytes=64 * made,
            power=tuple(power),
            checks=(_noise_check(self.noise, None, numbers), *self.further_checks(spec, None)),
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterable[dps.Trial]:
        """One run each: releases with fair inclusion bits for every group size, stored as counts per score level."""
        import numpy as np

        made = int(inputs["audit"]["releases"])
        for index in indices:
            groups: list[dps.Json] = []
            for size in inputs["threat_model"]["group_size"]:
                if context.cancelled():
                    raise dps.Cancelled
                coins = np.random.default_rng(context.seed(index, "coins", str(size))).integers(0, 2, made)
                found = self.release(inputs, context, index, int(size), coins.copy())
                scores, noise = np.asarray(found.scores, dtype=np.float64), np.asarray(found.noise, dtype=np.float64)
                if scores.shape != coins.shape:
                    raise ValueError(f"{self.kind}: release() gave scores of shape {scores.shape} for {made} coins")
                sums = {"count": noise.size, "absolute": float(np.abs(noise).sum()), "squared": float((noise**2).sum())}
                told = {"told": {name: float(value) for name, value in found.told.items()}} if found.told else {}
                groups.append({"group_size": size, "levels": _levels(scores, coins), "noise": sums, **told})
            yield dps.Trial(index=index, evidence=dps.FrozenMap({"groups": groups}))

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        """Evidence and a lower bound per group size, and the check of the noise."""
        assert spec.audit is not None  # trials imply an audit
        groups = [group for trial in trials for group in trial.evidence["groups"]]
        for size in spec.threat_model.group_size:
            evidence = _evidence(self, spec, size, _outcomes([g for g in groups if g["group_size"] == size]))
            yield evidence
            for delta in _deltas(spec, size):
                yield lower_from(evidence, spec.audit.confidence, delta=delta)
        yield _noise_check(self.noise, [group["noise"] for group in groups])
        yield from self.further_checks(spec, _told(groups))


def _deltas(spec: dps.Spec, group_size: int) -> list[float]:
    return [delta for size, delta in conditions(spec) if size == group_size]


def _evidence(mechanism: AttackedMechanism, spec: dps.Spec, group_size: int, outcomes: str) -> dps.Evidence:
    from dpspec.stats.attacks import thresholds

    return dps.Evidence(
        id=f"releases-{group_size}",
        kind="many-run-ranked",
        statistics=dps.FrozenMap({"outcomes": outcomes}),
        at=dps.FrozenMap({"group_size": group_size}),
        method=mechanism.attack,
        source=thresholds.SOURCE,
        scope=dps.Scope(
            adjacency=spec.threat_model.adjacency,
            access=mechanism.access,
            adversary=mechanism.adversary,
            data="this",
            pipeline="executed",
        ),
        assumptions=(_COINS,),
    )


def _levels(scores: np.ndarray[Any, Any], coins: np.ndarray[Any, Any]) -> list[list[int]]:
    """Numbers of absent and present releases per score level: [[level, absent, present], ...], ascending.

    The level of s is 256 asinh(s), rounded: monotone, with absolute resolution 1/256 near 0 and relative resolution
    1/256 for large scores. NaN scores have the lowest level.
    """
    import numpy as np

    levels = np.nan_to_num(np.round(_STEPS * np.arcsinh(scores)), nan=-_TOP, posinf=_TOP, neginf=-_TOP)
    known, place = np.unique(np.clip(levels, -_TOP, _TOP).astype(np.int64), return_inverse=True)
    counts = np.zeros((len(known), 2), dtype=np.int64)
    np.add.at(counts, (place, coins), 1)
    return [[int(level), int(absent), int(present)] for level, (absent, present) in zip(known, counts, strict=True)]


def _outcomes(groups: Sequence[Mapping[str, Any]]) -> str:
    """Inclusion bits of all releases by ascending level; ties are ordered against the attack (present first)."""
    counts: dict[int, list[int]] = {}
    for level, absent, present in (row for group in groups for row in group["levels"]):
        sums = counts.setdefault(level, [0, 0])
        sums[0] += absent
        sums[1] += present
    return "".join("1" * present + "0" * absent for _, (absent, present) in sorted(counts.items()))


def _told(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sums over all groups of each reported number. Raises ``ValueError`` if one is not finite."""
    sums: dict[str, list[float]] = {}
    for name, value in (item for group in groups for item in group.get("told", {}).items()):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"told.{name} must be a finite number, got {str(value)[:40]!r}")
        sums.setdefault(name, []).append(float(value))
    return {name: math.fsum(values) for name, values in sums.items()}


def _noise_check(law: str, found: Sequence[Mapping[str, Any]] | None, planned: int = 0) -> dps.Check:
    """Two-sided test of the noise scale; ``found`` is None for a plan, in which ``planned`` numbers are tested.

    Gaussian: the sum of squares is chi-square. Laplace: twice the sum of absolute values is chi-square with two degrees
    per number.
    """
    from dpspec.stats.conformance import measurement, noise_tests

    per_number, name = _LAWS[law]
    count = planned if found is None else sum(int(one["count"]) for one in found)
    total = float(per_number * count)
    if found is not None:
        total = math.fsum(float(one[name]) for one in found) * per_number
    measured = noise_tests.two_sided(total, 1.0, per_number * count)
    return measurement.check("noise-scale", measured, "reported", f"{law} noise, relative to the declared scale")


#: Degrees of freedom per number, and the name of the sum.
_LAWS: Mapping[str, tuple[int, str]] = {"gaussian": (1, "squared"), "laplace": (2, "absolute")}
