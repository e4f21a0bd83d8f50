"""An oracle for scopes: two explicit data sets inside a finding's scope, run through executed code, and compared.

What a step shows of a data set is the law of the noisy sum: a mixture over all batches that the run's own sampler can
draw, of noise around what the run's own contributions make of each. Nothing is sampled: batches are enumerated, so that
data sets are tiny. Laws are cut into cells of a line, which is post-processing: a divergence of cells is never above
that of the laws, and so never above a bound that holds.
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
from dpspec.training.loop.native import Parts, ScheduledPhase, parts_of
from dpspec.training.loop.samplers import FixedSize, Full, Poisson, Sampler
from support import specs

Array = np.ndarray[Any, Any]

#: Cells of a line, and of each step where several are put together.
CELLS, APART = 3000, {1: 3000, 2: 600, 3: 72}

#: So much may a divergence lie above a bound: executed sums are of float32.
ROOM = 1e-4


class Slope(torch.nn.Module):
    """One parameter w and one feature x: logits (w x, 0), so that all gradients lie on a line."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([start]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 1) to (b, 2)."""
        return torch.cat([x * self.w, torch.zeros_like(x)], dim=1)


class Given:
    """Records with the gradients that a case gives them."""

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
    """weights, means: (S,), of the batches. deviation: of the noise, of law ``noise``; width: of a uniform besides."""

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


def batches(sampler: Sampler) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every batch that a sampler can draw, with its probability, from the sampler's own parameters."""
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
    """What one step from ``state`` shows along ``line``, a unit vector; of one parameter, all that it shows."""
    along = torch.ones(1) if line is None else line
    weights, means = [], []
    for chance, batch in batches(phase.sampler):
        clipped = parts.contributions(state, torch.tensor(batch, dtype=torch.int64), phase.clip)
        weights.append(chance)
        means.append(float(clipped.sum.double() @ along.double()))
    return Law(np.array(weights), np.array(means), phase.deviation, phase.noise)


def cells(first: Law, second: Law, steps: int = 1, finer: int = 1) -> tuple[Array, Array]:
    """Both laws on one grid, as cells in the order of their loss; fewer of them where several steps follow.

    finer: how many times as many.
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
    # Cells of about the same mass of both, and finer where either is small.
    shares = np.cumsum(np.sqrt(p) + np.sqrt(q))
    starts = np.unique(np.searchsorted(shares, np.linspace(0.0, shares[-1], finer * APART[steps], endpoint=False)))
    return np.add.reduceat(p, starts), np.add.reduceat(q, starts)


def composed(steps: Sequence[tuple[Law, Law]], finer: int = 1) -> tuple[Array, Array]:
    """The cells of several steps that do not depend on each other."""
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
    """The most mass of p in a test whose mass of q is ``level``, cells taken by their ratio."""
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
    """A run on records of one feature, and behind them records of given gradients."""
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
    """What each step of a run shows; only for records whose gradients do not depend on the model, or for one step."""
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
    """What a plugin states from theory, of data of so many records."""
    facts = dps.Facts(records=records, features=1, classes=2, shape=(1,), parameters=parameters)
    context = cast(dps.Context, SimpleNamespace(facts=facts, progress=lambda *_, **__: None))
    return [one for one in audit.bound(spec, context) if isinstance(one, dps.Finding)]


def remembered_findings_of(audit: dps.Audit, spec: dps.Spec, records: int) -> list[dps.Finding]:
    """As ``findings_of``, worked out once: thousands of data sets are held against a few hundred mechanisms."""
    asked = repr((type(audit), spec, records))
    if asked not in _REMEMBERED:
        _REMEMBERED[asked] = findings_of(audit, spec, records)
    return list(_REMEMBERED[asked])


_REMEMBERED: dict[str, list[dps.Finding]] = {}


def proofs(findings: Sequence[dps.Finding], quantity: str = "epsilon") -> list[dps.Finding]:
    """Those that a verdict may rest on."""
    return [
        f
        for f in findings
        if f.quantity == quantity
        and f.bound in ("upper", "lower")
        and f.rigor in ("certified", "theorem")
        and not (f.printed is not None and f.printed.refuted)
    ]


def sides(direction: str, absent: Sequence[Law], present: Sequence[Law]) -> list[list[tuple[Law, Law]]]:
    """The pairs of laws that a direction speaks of: remove compares with the group to without it."""
    both = {"remove": list(zip(present, absent, strict=True)), "add": list(zip(absent, present, strict=True))}
    return [pairs for name, pairs in both.items() if direction in (name, "both")]


def worst_delta(
    finding: dps.Finding, absent: Sequence[Law], present: Sequence[Law], *, more: float = 0.0, finer: int = 1
) -> float:
    """delta of two data sets at the finding's epsilon and ``more``, the worse of the directions that it speaks of."""
    pairs = sides(finding.scope.direction, absent, present)
    return max(delta(*composed(each, finer), finding.value + more) for each in pairs)


def few(examples: int, check: Callable[[st.DataObject], None]) -> Callable[[], None]:
    """A test of the same examples every time, which CI runs."""
    return _drawn(pytest.mark.ci, check, max_examples=examples, derandomize=True)


def many(examples: int, check: Callable[[st.DataObject], None]) -> Callable[[], None]:
    """A test that takes minutes, of other examples every time."""
    return _drawn(pytest.mark.slow, check, max_examples=examples)


def _drawn(mark: pytest.MarkDecorator, check: Callable[[st.DataObject], None], **options: Any) -> Callable[[], None]:
    def test(data: st.DataObject) -> None:
        check(data)

    every = settings(deadline=None, suppress_health_check=list(HealthCheck), **options)
    found: Callable[[], None] = mark(every(given(st.data())(test)))
    return found
