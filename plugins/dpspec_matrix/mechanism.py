"""The mechanism ``matrix``: its keys and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import dpspec.contract as dps
from dpspec import kit
from dpspec_matrix.options import FIXED, SCHEMA, Schedule, refusals

if TYPE_CHECKING:
    from dpspec.accounting import Interval

_SOURCE = "Denisov, McMahan, Rush, Smith and Thakurta 2022, Theorem 2.1; docs/explanation/proofs/matrix.md"

_AMPLIFIED = "Choquette-Choo et al. 2023, Theorem 4; docs/explanation/proofs/matrix.md"

_ATTAINED = "gradients of the clip norm in the worst steps, along one direction or orthogonal, and 0 otherwise"

_ASSUMPTIONS = kit.dp_sgd_assumptions(
    noise_scale="the noise of all steps is C^-1 Z, with Gaussian Z of the declared scale",
    independent_noise="the rows of Z are independent",
    sampling="records take part as declared, in steps that depend on no other record",
)


class Matrix(kit.SimpleMechanism):
    """DP-FTRL: clipped gradients with noise that a matrix correlates across steps."""

    kind = "matrix"
    schema: ClassVar = SCHEMA
    source = _SOURCE
    rigor = "certified"
    scope = dps.Scope(adjacency="zero-out")
    assumptions = _ASSUMPTIONS
    example = Path(__file__).with_name("example.yaml").read_text(encoding="utf-8")
    iterative = True

    @classmethod
    def offer(cls) -> dps.Mechanism:
        return replace(super().offer(), claims=frozenset({"approx-dp", "pure-dp", "gdp"}))

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        yield from refusals(spec)
        yield from super().check(spec, facts)

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval | float:
        from dpspec_matrix.theory import epsilons

        if delta == 0.0:
            return math.inf
        return epsilons(Schedule.of(spec.mechanism.options), group_size, [delta])[0]

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_matrix import theory

        schedule, parameters = Schedule.of(spec.mechanism.options), context.facts.parameters
        directions = math.inf if parameters is None else parameters
        rows: list[tuple[str, int, float, float]] = []
        sizes = sorted({*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)})
        for done, size in enumerate(sizes):
            context.progress(done, len(sizes), "accounting")
            deltas = kit.claimed_deltas(spec, size)
            widths = [theory.WIDTH] * len(deltas) + [theory.CURVE_WIDTH] * len(kit.PROFILE_DELTAS)
            intervals = theory.epsilons(schedule, size, [*deltas, *kit.PROFILE_DELTAS], widths, directions)
            gap = theory.reduction(schedule, size, directions).reason
            for delta, epsilon in zip(deltas, intervals[: len(deltas)], strict=True):
                yield from self._findings(spec, "epsilon", {"delta": delta, "group_size": size}, epsilon, gap)
            if schedule.participation.scheme in FIXED:
                yield from self._findings(spec, "mu", {"group_size": size}, theory.mu_interval(schedule, size), gap)
            points = zip(intervals[len(deltas) :], kit.PROFILE_DELTAS, strict=True)
            rows += [("zero-out", size, epsilon.upper, delta) for epsilon, delta in points]
        context.progress(len(sizes), len(sizes), "accounting")
        yield kit.profile(rows, rigor="certified", source=self._source(schedule))

    def _findings(
        self, spec: dps.Spec, quantity: str, at: dict[str, dps.Json], interval: Interval, gap: str
    ) -> Iterator[dps.Finding]:
        """The upper end, and the lower one if models show all noisy sums: with plain descent."""
        from dpspec.accounting import certified_lower, certified_upper

        source = self._source(Schedule.of(spec.mechanism.options))
        upper = certified_upper(
            quantity,
            interval,
            at=at,
            scope=self.scope,
            source=f"{source}; the ends differ by {gap}" if gap else source,
            assumptions=self.assumptions,
        )
        yield upper
        if spec.training.get("optimizer") is None:
            lower = certified_lower(upper, interval, source=_ATTAINED)
            yield from () if lower is None else (lower,)

    def _source(self, schedule: Schedule) -> str:
        return _SOURCE if schedule.participation.scheme in FIXED else _AMPLIFIED
