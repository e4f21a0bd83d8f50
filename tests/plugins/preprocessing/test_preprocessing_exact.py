"""Exact divergences of whole pipelines on explicit neighbours: the real steps run, then the divergence of the outputs.

What the references have for their own pairs is met where those pairs could be rebuilt: R01 to R03, R05 to R07, R09 to
R11 and R16. For the rest pairs of ours are held against what is proved, and against the references' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from support.preprocessing_steps import apply_step, count_in_balls

from dpspec_preprocessing import collection, sensitivity, steps
from dpspec_preprocessing.private import (
    PrivateMechanism,
    group_divergence,
    repaired_divergence,
    repaired_rdp,
    smooth_divergence,
)
from dpspec_preprocessing.published import clusters_printed, table_2_divergence
from dpspec_preprocessing.sensitivity import Sensitivity, read_step

Rows = npt.NDArray[np.float64]
Pair = tuple[Rows, Rows]


def near(value: float) -> object:
    """As many digits as the references have."""
    return pytest.approx(value, rel=2e-8)


def both(common: Rows, one: list[float], other: list[float]) -> Pair:
    return np.concatenate([[one], common]), np.concatenate([[other], common])


def circles(copies: int, far: float, around: int = 2) -> Pair:
    """Five clusters on a circle of 0.0299 around each of ``around`` ends at +-far."""
    angles = 2.0 * np.pi * np.arange(5) / 5.0
    circle = 0.0299 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    ends = np.array([[far, 0.0], [-far, 0.0]])[:around]
    return both(np.repeat(np.concatenate([end + circle for end in ends]), copies, axis=0), [far, 0.0], [-far, 0.0])


def one_cluster(copies: int, far: float, at: float) -> Pair:
    """One cluster 0.02 to 0.03 beside the record, which stands opposite its replacement."""
    offset = math.sqrt(0.025**2 - (far - at) ** 2) if far - at < 0.025 else 0.0
    return both(np.tile([[at, offset]], (copies, 1)), [far, 0.0], [-far, 0.0])


def line(copies: int, eta: float, ends: int = 2) -> Pair:
    """Clusters of ``copies`` on either side of 0.3 and -0.3, their representative 0.95 eta from the other members."""
    parts = []
    for side in (1.0, -1.0)[:ends]:
        for first in (-2.95, 2.0)[: 2 if ends == 2 else 1]:
            members = np.full((copies, 1), side * (0.3 + (first + 0.95) * eta))
            members[0] = side * (0.3 + first * eta)
            parts.append(members)
    return both(np.concatenate(parts), [0.3], [-0.3])


def rows_summed(pair: Pair, step: dict[str, object], what: Callable[[Rows], Rows]) -> float:
    one, other = (float(what(apply_step(x, step)[:, 0]).sum()) for x in pair)
    return abs(one - other)


def halved(x: Rows) -> Rows:
    return 0.5 * x


def cut(x: Rows) -> Rows:
    return np.clip(x, -0.5, 0.5)


def whole(x: Rows) -> Rows:
    return x


def gaussian(noise: float, n: int) -> PrivateMechanism:
    return PrivateMechanism(kind="gaussian", noise=noise, records=n)


def laplace(noise: float, n: int) -> PrivateMechanism:
    return PrivateMechanism(kind="laplace", noise=noise, records=n)


def full(noise: float, n: int) -> PrivateMechanism:
    return PrivateMechanism(kind="dp-gd", noise=noise, records=n)


#: name: pair, step, query or gradient, mechanism, order, exact divergence, printed (0 where that is not exceeded).
CASES = {
    "R01-mild": (one_cluster(3, 1.0, 1.0), {"deduplicate": 0.01}, halved, gaussian, 0.25, 16.0, 2.0, 0.0),
    "R01": (circles(3, 1.0), {"deduplicate": 0.01}, halved, gaussian, 0.25, 16.0, 60.5, 38.85),
    "R02-mild": (line(10, 0.05, 1), {"quantise": 0.05}, cut, gaussian, 0.5, 12.0, 1.5836344, 0.0),
    "R02": (line(10, 0.05), {"quantise": 0.05}, cut, gaussian, 0.5, 12.0, 8.00415, 6.3),
    "R05-mild": (one_cluster(2, 0.9, 0.875), {"deduplicate": 0.01}, whole, full, 0.2, 14.0, 2.003575, 0.0),
    "R05": (circles(2, 0.95), {"deduplicate": 0.01}, whole, full, 0.2, 14.0, 36.3888, 11.76),
    "R06-mild": (line(50, 0.01, 1), {"quantise": 0.01}, whole, full, 0.1, 32.0, 0.18164644, 0.0),
    "R06": (line(50, 0.01), {"quantise": 0.01}, whole, full, 0.1, 32.0, 0.96983104, 0.0),
    "R09-mild": (one_cluster(4, 1.0, 1.0), {"deduplicate": 0.01}, halved, laplace, 0.1, 11.0, 0.1858132, 0.0),
    "R09": (circles(4, 1.0), {"deduplicate": 0.01}, halved, laplace, 0.1, 11.0, 1.5353373, 0.9),
    "R10-mild": (line(15, 0.02, 1), {"quantise": 0.02}, cut, laplace, 0.5, 40.0, 0.41554953, 0.0),
    "R10": (line(15, 0.02), {"quantise": 0.02}, cut, laplace, 0.5, 40.0, 0.81454953, 0.8),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_exact_divergence_after_near_duplicates_are_merged(name: str) -> None:
    pair, step, what, kind, noise, order, exact, exceeded = CASES[name]
    m = kind(noise, len(pair[0]))
    shift = rows_summed(pair, step, what)
    # A query moves by 1 for one record, a sum of gradients by 2.
    divergence = repaired_rdp(m.with_noise_times(shift / (2.0 if m.kind == "dp-gd" else 1.0)), order)
    assert divergence == near(exact)
    ((by, eta),) = step.items()
    ball = max(int(count_in_balls(x, 8.0 * eta).max()) for x in pair)
    changed = min(float(m.records), sensitivity.clusters(ball))
    moved = 1.0 if by == "deduplicate" else 2.0 * eta
    assert divergence <= repaired_divergence(m, order, Sensitivity(changed, moved).tau, changed)
    cluster = max(steps.find_good_clusters(x, eta).largest for x in pair)
    printed = table_2_divergence(m, order, clusters_printed(cluster) * (moved if by == "deduplicate" else eta), 0.0)
    if exceeded:
        assert printed == near(exceeded)
        assert divergence > printed


def imputed(n: int, missing: int) -> Pair:
    """``missing`` records without any value, zeros, and a record at an end of the line."""
    common = np.zeros((n - 1, 1))
    common[:missing] = math.nan
    return both(common, [1.0], [-1.0])


@pytest.mark.parametrize(
    ("name", "n", "missing", "noise", "order", "exact"),
    [("R03", 1000, 50, 0.4, 20.0, 1.95457064), ("R07", 400, 100, 0.3, 11.0, 3.52)],
)
def test_imputation_attains_the_repaired_bound(
    name: str, n: int, missing: int, noise: float, order: float, exact: float
) -> None:
    pair = imputed(n, missing)
    m = gaussian(noise, n) if name == "R03" else full(noise, n)
    shift = rows_summed(pair, {"impute": "mean"}, cut if name == "R03" else whole)
    divergence = repaired_rdp(m.with_noise_times(shift / (1.0 if name == "R03" else 2.0)), order)
    repaired = smooth_divergence(m, order, missing * sensitivity.mean_same_mask(n - missing))
    assert divergence == near(exact)
    assert repaired == pytest.approx(divergence, rel=1e-12)


def test_r11_two_choices_after_imputation() -> None:
    """Qualities f and -f: the logit moves by the whole shift, the divergence by less."""
    pair = imputed(250, 25)
    one, other = (float(cut(apply_step(x, {"impute": "mean"})).sum()) for x in pair)
    p, q = (1.0 / (1.0 + math.exp(-value)) for value in (one, other))  # noise 1, sensitivity 1: e^(f / 2) to e^(-f / 2)
    exact = math.log(p**15 * q**-14 + (1 - p) ** 15 * (1 - q) ** -14) / 14
    assert exact == near(0.58014219)
    m = PrivateMechanism(kind="exponential", noise=1.0, records=250)
    assert exact <= smooth_divergence(m, 15.0, 25 * sensitivity.mean_same_mask(225))


def leaning(n: int, gap: float) -> Pair:
    """Records at both ends along the first axis, which alone varies, and one that leans to either side of it."""
    common = np.zeros((n - 1, 2))
    common[:, 0] = math.sqrt(gap) * np.where(np.arange(n - 1) % 2 == 0, 1.0, -1.0)
    half = math.sqrt(0.5)
    return both(common, [half, half], [half, -half])


@pytest.mark.parametrize(
    ("name", "m", "order", "gap", "reference"),
    [
        ("R04", gaussian(0.05, 500), 11.0, 0.4, 0.033183848),
        ("R08", full(0.02, 2000), 25.0, 0.25, 0.07842806),
        ("R12", laplace(0.01, 101), 11.0, 0.6, 0.00087315992),
    ],
)
def test_projections_stay_far_below_the_repaired_bound(
    name: str, m: PrivateMechanism, order: float, gap: float, reference: float
) -> None:
    """Every record counted with the sign of its first coordinate: the projection's turn adds up over all of them."""
    pair = leaning(m.records, gap)
    signs = np.where(np.arange(m.records) % 2 == 1, 1.0, -1.0)
    one, other = (float((steps.fit_projection(x, 1)(x)[:, 1] * signs).sum()) for x in pair)
    shift = abs(one - other) / (2.0 if m.kind == "dp-gd" else 1.0)
    divergence = repaired_rdp(m.with_noise_times(shift), order)
    assert divergence <= 1.05 * reference
    least = min(collection.measure_limits(x, read_step({"pca": 1}))["min_eigengap"] for x in pair)
    tau = sensitivity.pca(least, m.records).tau
    assert max(divergence, reference) <= smooth_divergence(m, order, tau)
    assert divergence >= 0.05 * smooth_divergence(m, order, 0.0)


def test_r13_sampled_records_after_projection() -> None:
    """One step of a thousand records drawn one at a time, by quadrature in the plane; 20000 steps of it."""
    m = PrivateMechanism(kind="sgd-sampled", noise=0.05, records=1000, steps=20_000)
    pair = leaning(1000, 0.5)
    line = np.linspace(-9.0 * m.sigma, 9.0 * m.sigma, 601)
    x, y = np.meshgrid(line, line, indexing="ij")
    laws = []
    for rows in pair:
        places, counts = np.unique(np.round(steps.fit_projection(rows, 1)(rows), 13), axis=0, return_counts=True)
        law = sum(
            k * np.exp(-0.5 * ((x - u) ** 2 + (y - v) ** 2) / m.sigma**2)
            for (u, v), k in zip(places, counts, strict=True)
        )
        laws.append(law / law.sum())
    ratio = laws[0] / laws[1]
    exact = 20_000 * math.log1p(float(((ratio**11 - 1.0 - 11.0 * (ratio - 1.0)) * laws[1]).sum())) / 10.0
    assert exact == pytest.approx(0.0016209, rel=0.005)
    assert exact <= smooth_divergence(m, 11.0, sensitivity.pca(0.4999, 1000).tau)


def iterated(pair: Pair, m: PrivateMechanism, order: float, last: int) -> float:
    """The divergence of the iterate at a random step among the first ``last`` ones, gradients being the rows."""
    spread = m.sigma * np.sqrt(np.arange(1, last + 1))
    x = np.linspace(-8.0 * spread[-1], 8.0 * spread[-1], 4001)
    laws = []
    for rows in pair:
        centres, law = np.cumsum(rows[:last, 0]), np.zeros_like(x)
        for start in range(0, last, 500):
            at = slice(start, start + 500)
            law += (np.exp(-0.5 * ((x[:, None] - centres[at]) / spread[at]) ** 2) / spread[at]).sum(axis=1)
        laws.append(law / law.sum())
    ratio = laws[0] / laws[1]
    excess = float(((ratio**order - 1.0 - order * (ratio - 1.0)) * laws[1]).sum())
    return math.log1p(excess) / (order - 1.0)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("R14", pytest.approx(3.5362e-7, rel=0.05)),
        ("R15", pytest.approx(2.6079e-7, rel=0.1)),
        ("R16", pytest.approx(1.9527e-6, rel=5e-5)),
    ],
)
def test_hidden_iterates_after_every_step(name: str, reference: object) -> None:
    """The record first, what it changes next; of R16 the reference's own pair, which stops among n - p + 1 steps."""
    if name == "R14":
        m, order, last, step = (
            PrivateMechanism(kind="sgd-iterated", noise=0.001, records=10_000),
            11.0,
            9_991,
            {"deduplicate": 0.01},
        )
        pair = tuple(np.concatenate([x, np.zeros((10_000 - len(x), 2))]) for x in one_cluster(5, 0.9, 0.875))
        tau = 2.0 * 5
    elif name == "R15":
        m, order, last, step = (
            PrivateMechanism(kind="sgd-iterated", noise=0.002, records=5_000),
            12.0,
            4_961,
            {"quantise": 0.01},
        )
        members = np.full((20, 1), 0.95 - 0.02)
        members[0] -= 0.0095
        common = np.concatenate([members, np.zeros((5_000 - 21, 1))])
        pair = both(common, [0.95], [-0.95])
        tau = 2.0 * 21 * 2.0 * 0.01
    else:
        m, order, last, step = (
            PrivateMechanism(kind="sgd-iterated", noise=0.005, records=2_000),
            11.0,
            1_801,
            {"impute": "mean"},
        )
        pair, tau = imputed(2_000, 200), 200 * sensitivity.mean_same_mask(1800)
    exact = iterated(tuple(apply_step(x, step) for x in pair), m, order, last)
    assert exact == reference
    assert exact <= smooth_divergence(m, order, tau)


@pytest.mark.parametrize("replaced", [1, 4, 20])
def test_groups_of_records_before_hidden_iterates(replaced: int) -> None:
    """So many records at one end or at the other, first of all: what group privacy takes of the iterated mechanism."""
    m = PrivateMechanism(kind="sgd-iterated", noise=0.01, records=400)
    rows = np.zeros((400, 1))
    rows[:replaced] = 1.0
    exact = iterated((rows, -rows), m, 4.0, 400)
    assert exact <= group_divergence(m, 4.0, replaced - 1) < math.inf
