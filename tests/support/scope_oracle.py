"""An oracle for scopes: compare two explicit datasets inside a finding's scope by the executed code.

A step releases a noisy sum. Its distribution is a mixture over all batches of the run's sampler, of noise around the
clipped sum of each batch. Batches of tiny datasets are enumerated, not sampled. Distributions are discretized into
cells of a line. This is post-processing, so the divergence of the cells never exceeds a valid bound.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import dpspec.contract as dps
from dpspec.sampling import SamplingScheme
from dpspec.sampling.fixed import FixedSize
from dpspec.sampling.poisson import Full, Poisson
from dpspec.training.loop.native import Parts, ScheduledPhase, parts_of
from support import specs

Array = np.ndarray[Any, Any]

#: Cells of a line, and of each step by the number of composed steps.
CELLS, APART = 3000, {1: 3000, 2: 600, 3: 72}

#: Tolerance of a divergence above a bound, because executed sums have type float32.
ROOM = 1e-4


class Slope(torch.nn.Module):
    """One parameter w and one feature x: logits (w x, 0), so that all gradients are parallel."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([start]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1) to (b, 2)."""
        return torch.cat([x * self.w, torch.zeros_like(x)], dim=1)


class Given:
    """Records with given gradients."""

    def __init__(self, gradients: Sequence[float]) -> None:
        self._rows = torch.tensor(gradients, dtype=torch.float32).reshape(-1, 1)

    @property
    def count(self) -> int:
        return len(self._rows)

    def gradients(self, indices: torch.Tensor) -> torch.Tensor:
        """(b, 1)."""
        return self._rows[indices]


@dataclass(frozen=True)
class Law:
    """A distribution of noisy sums.

    weights, means: of the batches, (S,). deviation: the standard deviation of the noise, whose kind is ``noise``.
    width: of an added uniform.
    """

    weights: Array
    means: Array
    deviation: float
    noise: str = "gaussian"
    width: float = 0.0

    def masses(self, edges: Array) -> Array:
        """The probabilities of the cells below, between and above ``edges``."""
        z = (edges[None, :] - self.means[:, None]) / self.deviation
        below, above = self._tail(-z), self._tail(z)  # mass left of the edge, and right of it
        zero, one = np.zeros((len(z), 1)), np.ones((len(z), 1))
        left, right = np.hstack([zero, below, one]), np.hstack([one, above, zero])
        upper = np.hstack([z > 0.0, np.ones((len(z), 1), dtype=bool)])
        cells = np.where(upper, right[:, :-1] - right[:, 1:], left[:, 1:] - left[:, :-1])
        return np.asarray(self.weights @ np.maximum(cells, 0.0))

    def _tail(self, z: Array) -> Array:
        """P[noise / deviation > z]."""
        if self.noise == "laplace":
            t = math.sqrt(2.0) * z
            return np.where(t > 0.0, 0.5 * np.exp(-np.abs(t)), 1.0 - 0.5 * np.exp(-np.abs(t)))
        if self.width == 0.0:
            return np.asarray(ndtr(-z))
        half = 0.5 * self.width / self.deviation
        return np.asarray((_lost(z - half) - _lost(z + half)) / (2.0 * half))


def _lost(z: Array) -> Array:
    """The integral of the normal tail from z on: phi(z) - z P[N > z]."""
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) - z * ndtr(-z))


def batches(sampler: SamplingScheme) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield every batch that a sampler can draw, with its probability."""
    if isinstance(sampler, Full):
        yield 1.0, tuple(range(sampler.records))
    elif isinstance(sampler, FixedSize):
        drawn = list(itertools.combinations(range(sampler.records), sampler.batch_size))
        yield from ((1.0 / len(drawn), batch) for batch in drawn)
    elif isinstance(sampler, Poisson):
        for size in range(sampler.records + 1):
            chance = sampler.rate**size * (1.0 - sampler.rate) ** (sampler.records - size)
            if chance > 0.0:
                yield from ((chance, batch) for batch in itertools.combinations(range(sampler.records), size))
    else:
        raise TypeError(f"no batches of {sampler!r}")


def law_of(parts: Parts, phase: ScheduledPhase, state: torch.Tensor, line: torch.Tensor | None = None) -> Law:
    """Return the distribution of one step from ``state`` along the unit vector ``line``; none for one parameter."""
    along = torch.ones(1) if line is None else line
    weights, means = [], []
    for chance, batch in batches(phase.sampler):
        clipped = parts.contributions(state, torch.tensor(batch, dtype=torch.int64), phase.clip)
        weights.append(chance)
        means.append(float(clipped.sum.double() @ along.double()))
    return Law(np.array(weights), np.array(means), phase.deviation, phase.noise)


def cells(first: Law, second: Law, steps: int = 1, finer: int = 1) -> tuple[Array, Array]:
    """Discretize both distributions on one grid, for several steps into fewer cells ordered by loss.

    finer: a factor of the number of cells.
    """
    means = np.concatenate([first.means, second.means])
    reach = 14.0 * max(first.deviation, second.deviation) + first.width
    edges = np.linspace(means.min() - reach, means.max() + reach, finer * CELLS)
    p, q = first.masses(edges), second.masses(edges)
    if steps == 1:
        return p, q
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(np.nan_to_num(np.log(p) - np.log(q), nan=0.0), kind="stable")
    p, q = p[order], q[order]
    # Cells have about equal sums of square roots of both masses: finer where either mass is small.
    shares = np.cumsum(np.sqrt(p) + np.sqrt(q))
    starts = np.unique(np.searchsorted(shares, np.linspace(0.0, shares[-1], finer * APART[steps], endpoint=False)))
    return np.add.reduceat(p, starts), np.add.reduceat(q, starts)


def composed(steps: Sequence[tuple[Law, Law]], finer: int = 1) -> tuple[Array, Array]:
    """Return the cells of several independent steps."""
    p, q = np.ones(1), np.ones(1)
    for first, second in steps:
        one, other = cells(first, second, len(steps), finer)
        p, q = np.outer(p, one).ravel(), np.outer(q, other).ravel()
    return p, q


def delta(p: Array, q: Array, epsilon: float) -> float:
    """The hockey-stick divergence of cells: sum of max(p - e^epsilon q, 0)."""
    if epsilon == math.inf:
        return float(p[q == 0.0].sum())
    return float(np.maximum(p - math.exp(min(epsilon, 700.0)) * q, 0.0).sum())


def power(p: Array, q: Array, level: float) -> float:
    """Return the power of the likelihood-ratio test of q against p at ``level``."""
    order = np.argsort(-(p / np.maximum(q, 1e-300)), kind="stable")
    level_of, power_of = np.cumsum(q[order]), np.cumsum(p[order])
    return float(np.interp(level, np.concatenate([[0.0], level_of]), np.concatenate([[0.0], power_of])))


def run_of(
    phases: Sequence[Mapping[str, Any]],
    x: Sequence[float],
    y: Sequence[int],
    gradients: Sequence[float] = (),
    start: float = 0.0,
    training: Mapping[str, Any] | None = None,
    batch: float = 1.0,
) -> dps.TrainingJob:
    """Return a run on records of one feature, followed by records with given gradients."""
    return dps.TrainingJob(
        x=np.array(x, dtype=np.float32).reshape(-1, 1),
        y=np.array(y, dtype=np.int64),
        model=Slope(start),
        phases=[dps.FrozenMap(phase) for phase in phases],
        options=dps.FrozenMap({"learning_rate": 0.5, "reduction": "sum", **(training or {})}),
        expected_batch_size=batch,
        device="cpu",
        seed=1,
        canaries=cast(Any, Given(gradients)) if len(gradients) else None,
    )


def laws_of(job: dps.TrainingJob) -> list[Law]:
    """Return the distribution of each step, for one step or for gradients that do not depend on the model."""
    parts = parts_of(job)
    return [law_of(parts, phase, parts.initial) for phase in parts.schedule]


def spec_of(
    kind: str,
    mechanism: Mapping[str, Any],
    claims: Sequence[dps.Claim],
    training: Mapping[str, Any] | None = None,
    audit: dps.AuditOptions | None = None,
) -> dps.Spec:
    return specs.bare(
        mechanism=dps.Section(kind, dps.FrozenMap(mechanism)),
        training=dps.Section("native", dps.FrozenMap({"learning_rate": 0.5, "reduction": "sum", **(training or {})})),
        threat_model=dps.ThreatModel(group_size=(1,)),
        claims=tuple(claims),
        audit=audit,
    )


def claim_of(kind: str, direction: str = "both", group_size: int = 1, **options: Any) -> dps.Claim:
    return dps.Claim(
        id="c",
        kind=kind,
        options=dps.FrozenMap(options),
        adjacency="add-remove",
        access="all-iterates",
        direction=cast(Any, direction),
        group_size=group_size,
    )


def findings_of(audit: dps.Audit, spec: dps.Spec, records: int, parameters: int = 1) -> list[dps.Finding]:
    """Return a plugin's bounds for data with this number of records."""
    facts = dps.Facts(records=records, features=1, classes=2, shape=(1,), parameters=parameters)
    context = cast(dps.Context, SimpleNamespace(facts=facts, progress=lambda *_, **__: None))
    return [one for one in audit.bound(spec, context) if isinstance(one, dps.Finding)]


def remembered_findings_of(audit: dps.Audit, spec: dps.Spec, records: int) -> list[dps.Finding]:
    """Cache ``findings_of``, because tests compare thousands of datasets with a few hundred mechanisms."""
    key = repr((type(audit), spec, records))
    if key not in _REMEMBERED:
        _REMEMBERED[key] = findings_of(audit, spec, records)
    return list(_REMEMBERED[key])


_REMEMBERED: dict[str, list[dps.Finding]] = {}


def proofs(findings: Sequence[dps.Finding], quantity: str = "epsilon") -> list[dps.Finding]:
    """Return the findings that a verdict may use as a proof."""
    return [
        f
        for f in findings
        if f.quantity == quantity
        and f.bound in ("upper", "lower")
        and f.rigor in ("certified", "theorem")
        and not (f.printed is not None and f.printed.refuted)
    ]


def sides(direction: str, absent: Sequence[Law], present: Sequence[Law]) -> list[list[tuple[Law, Law]]]:
    """Return the compared distributions of a direction: remove compares the group's presence with its absence."""
    both = {"remove": list(zip(present, absent, strict=True)), "add": list(zip(absent, present, strict=True))}
    return [pairs for name, pairs in both.items() if direction in (name, "both")]


def worst_delta(
    finding: dps.Finding, absent: Sequence[Law], present: Sequence[Law], *, more: float = 0.0, finer: int = 1
) -> float:
    """Return delta of two datasets at the finding's epsilon plus ``more``, the larger over the finding's directions."""
    pairs = sides(finding.scope.direction, absent, present)
    return max(delta(*composed(each, finer), finding.value + more) for each in pairs)


def few(check: Callable[[st.DataObject], None]) -> Callable[[], None]:
    """Return a test of fixed examples, for CI."""
    return _drawn(pytest.mark.ci, check)


def many(check: Callable[[st.DataObject], None]) -> Callable[[], None]:
    """Return a test of random examples that takes minutes."""
    return _drawn(pytest.mark.slow, check, max_examples=10_000)


def _drawn(mark: pytest.MarkDecorator, check: Callable[[st.DataObject], None], **options: Any) -> Callable[[], None]:
    def test(data: st.DataObject) -> None:
        check(data)

    every = settings(suppress_health_check=list(HealthCheck), **options)
    found: Callable[[], None] = mark(every(given(st.data())(test)))
    return found
