"""A mechanism with an attack: it plants by coins that core has thrown, and says how much each release looks planted."""

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

#: Scores are told to this part of themselves near 0, and to that part of their size far from it.
_STEPS = 256

#: Beyond it (a score of about 1e300), levels say no more.
_TOP = 180_000

_COINS = coins("each group is planted by an independent fair coin")


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What one trial saw of one group size: of as many releases as there were coins.

    scores: (n,) how much each release looks as if the group had been planted; the log-likelihood ratio is best. Made
        without looking at the coins.
    noise: (m,) what was added, in units of the declared scale: the noise that the releases were made with, or what an
        observer can tell of it. Core tests it against the law that the class names.
    told: further numbers by name; :meth:`AttackedMechanism.further_checks` is given their sums over all releases.
    """

    scores: np.ndarray[Any, Any]
    noise: np.ndarray[Any, Any]
    told: Mapping[str, float] = field(default_factory=dict)


class AttackedMechanism(SimpleMechanism):
    """A :class:`SimpleMechanism` with one method more; core throws the coins, tests, and bounds epsilon from below.

    noise: the law of ``Releases.noise`` if the pipeline is as declared: ``gaussian`` (standard normal) or ``laplace``
        (of scale 1), independent. Every run is checked against it.
    seconds: what one release takes, for plans.
    adversary, access: whom the attack speaks of (``dps.Scope``); it knows the data but for the group.
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
        """Make one release per coin (n,), with a group of ``group_size`` planted where it is 1; score each.

        inputs: ``mechanism``, ``threat_model``, ``audit``, ... of the spec, as ``trials`` may read them. All randomness
        comes from ``context.seed(index, ...)``, and releases are independent.
        """

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        """How many numbers of ``Releases.noise`` each release tells, for plans: what their check will see. One."""
        return 1

    def further_checks(self, spec: dps.Spec, told: Mapping[str, float] | None) -> Iterable[dps.Check]:
        """Tests of what ran besides that of the noise, from the sums of ``Releases.told`` by name; none by default.

        told: None for a plan, which promises the same checks, each with p-value 1 and nothing measured.
        """
        return ()

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """An attack needs rows. Extend it with what a schema cannot say."""
        if spec.audit is not None and facts.digest is None:
            yield dps.Diagnostic(
                code="data-not-at-hand",
                message="data that is only declared can be bounded, not attacked",
                path=("audit",),
                help="leave audit out, or name the data",
            )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """A chunk per run, and the largest epsilon that perfect guesses would show."""
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
        """One run each: releases by fair coins for every group size; kept are counts per level of score."""
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
        """Evidence and a lower bound for every group size, and the check of the noise."""
        assert spec.audit is not None  # without an audit there are no trials
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
    """How many absent and present releases have each level of score: [[level, absent, present], ...], ascending.

    The level of s is 256 asinh(s) to the nearest whole number: it rises with s, is exact to 1/256 near 0 and to
    1/256 of s far from it. Scores that are no numbers are lowest, whatever their coins.
    """
    import numpy as np

    levels = np.nan_to_num(np.round(_STEPS * np.arcsinh(scores)), nan=-_TOP, posinf=_TOP, neginf=-_TOP)
    known, place = np.unique(np.clip(levels, -_TOP, _TOP).astype(np.int64), return_inverse=True)
    counts = np.zeros((len(known), 2), dtype=np.int64)
    np.add.at(counts, (place, coins), 1)
    return [[int(level), int(absent), int(present)] for level, (absent, present) in zip(known, counts, strict=True)]


def _outcomes(groups: Sequence[Mapping[str, Any]]) -> str:
    """The coins of all releases from the lowest level to the highest; within one, present first, against the attack."""
    counts: dict[int, list[int]] = {}
    for level, absent, present in (row for group in groups for row in group["levels"]):
        sums = counts.setdefault(level, [0, 0])
        sums[0] += absent
        sums[1] += present
    return "".join("1" * present + "0" * absent for _, (absent, present) in sorted(counts.items()))


def _told(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The sum over all groups of each number that releases told; ``ValueError`` where one is no finite number."""
    sums: dict[str, list[float]] = {}
    for name, value in (item for group in groups for item in group.get("told", {}).items()):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"told.{name} must be a finite number, got {str(value)[:40]!r}")
        sums.setdefault(name, []).append(float(value))
    return {name: math.fsum(values) for name, values in sums.items()}


def _noise_check(law: str, found: Sequence[Mapping[str, Any]] | None, planned: int = 0) -> dps.Check:
    """Whether the noise has the declared size; ``found`` is None for a plan, in which ``planned`` numbers are tested.

    Gaussian: the sum of squares is chi-square. Laplace: the sum of absolute values is Gamma, twice it chi-square with
    two degrees for every number. Either is tested two-sided.
    """
    from dpspec.stats.conformance import measurement, noise_size

    per_number, name = _LAWS[law]
    count = planned if found is None else sum(int(one["count"]) for one in found)
    total = float(per_number * count)
    if found is not None:
        total = math.fsum(float(one[name]) for one in found) * per_number
    measured = noise_size.two_sided(total, 1.0, per_number * count)
    return measurement.check("noise-scale", measured, "reported", f"{law} noise, relative to the declared scale")


#: Degrees of freedom per number, and which sum of theirs has them as its mean.
_LAWS: Mapping[str, tuple[int, str]] = {"gaussian": (1, "squared"), "laplace": (2, "absolute")}
