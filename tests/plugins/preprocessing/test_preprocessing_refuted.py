"""Printed statements that explicit data exceed, by running the real code; what is certified holds on the same data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from dpspec_preprocessing import clusters, lemmas, ptr, sensitivity, steps, totals
from dpspec_preprocessing.private import Private, certified_rdp, printed_rdp, sampled_limit

Rows = npt.NDArray[np.float64]
ETA = 0.01


def around(centre: Sequence[float], directions: Rows, copies: int, reach: float = 2.99) -> Rows:
    """Clusters of copies at ``reach`` eta from a centre."""
    return np.repeat(np.asarray(centre) + reach * ETA * directions, copies, axis=0)


def circle() -> Rows:
    angles = 2.0 * np.pi * np.arange(5) / 5.0
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def icosahedron() -> Rows:
    golden = (1.0 + math.sqrt(5.0)) / 2.0
    corners = [
        np.roll([0.0, a, b * golden], shift) for shift in range(3) for a, b in itertools.product((1.0, -1.0), repeat=2)
    ]
    return np.array(corners) / math.sqrt(1.0 + golden**2)


def both(common: Rows, one: Sequence[float], other: Sequence[float]) -> tuple[Rows, Rows]:
    return np.concatenate([[one], common]), np.concatenate([[other], common])


def ball(pair: Sequence[Rows], eta: float = ETA) -> int:
    return max(int(clusters.ball_counts(x, 8.0 * eta).max()) for x in pair)


def largest_cluster(pair: Sequence[Rows], eta: float = ETA) -> int:
    return max(clusters.good_clusters(x, eta).largest for x in pair)


def line_case(copies: int) -> tuple[Rows, Rows]:
    common = np.concatenate([around([at], np.array([[-1.0], [1.0]]), copies, 2.9) for at in (0.2, 0.7)])
    return both(common, [0.2], [0.7])


def case(directions: Rows, copies: int, far: float = 0.95) -> tuple[Rows, Rows]:
    d = directions.shape[1]
    one, other = np.zeros(d), np.zeros(d)
    one[0], other[0] = far, -far
    common = np.concatenate([around(at, directions, copies) for at in (one, other)])
    return both(common, one.tolist(), other.tolist())


@pytest.mark.parametrize(
    ("pair", "copies", "changed"),
    [
        (line_case(10), 10, 36),
        (case(circle(), 10), 10, 90),
        (case(icosahedron(), 10), 10, 216),
        (case(circle(), 5), 5, 40),
    ],
)
def test_v1_one_record_destroys_many_clusters(pair: tuple[Rows, Rows], copies: int, changed: int) -> None:
    processed = [steps.deduplicate(x, ETA)[1:] for x in pair]
    found = steps.distance(*processed)
    assert largest_cluster(pair) == copies
    assert found[0] == changed
    assert found[0] > sensitivity.clusters_printed(copies)
    assert found[0] <= sensitivity.clusters(ball(pair))
    assert found[1] <= 1.0


@pytest.mark.parametrize(
    ("common", "one", "other", "moved"),
    [
        ([[0.6 * ETA, 0.0], [-0.6 * ETA, 0.0]], [0.0, 0.79 * ETA], [0.0, -0.79 * ETA], 1.58),
        ([[0.0, 0.0]], [0.0, 0.999 * ETA], [0.0, -0.999 * ETA], 1.998),
    ],
)
def test_v2_quantised_records_move_by_up_to_two_eta(
    common: list[list[float]], one: list[float], other: list[float], moved: float
) -> None:
    processed = [steps.quantise(x, ETA)[1:] for x in both(np.array(common), one, other)]
    found = steps.distance(*processed)[1]
    assert found == pytest.approx(moved * ETA)
    assert ETA < found <= 2.0 * ETA


def half_sum(x: Rows) -> float:
    return float(0.5 * x[:, 0].sum())


@pytest.mark.parametrize(("copies", "exact", "printed"), [(3, 6.0061375, 4.2735), (10, 105.03295, 46.3155)])
def test_v3_gaussian_after_deduplication(copies: int, exact: float, printed: float) -> None:
    pair = case(circle(), copies)
    m = Private(kind="gaussian", noise=0.1, records=len(pair[0]))
    one, other = (half_sum(steps.deduplicate(x, ETA)) for x in pair)
    divergence = certified_rdp(m.louder(abs(one - other)), 11.0)
    claimed = totals.printed(m, 11.0, sensitivity.clusters_printed(largest_cluster(pair)))
    assert (divergence, claimed) == (pytest.approx(exact, rel=1e-8), pytest.approx(printed, rel=1e-8))
    changed = sensitivity.clusters(ball(pair))
    assert claimed < divergence <= totals.least(m, 11.0, changed, changed)


def quantised_line(copies: int, eta: float, centre: float) -> tuple[Rows, Rows]:
    """Two clusters at each of +-centre: first the record that represents, then members 0.95 eta further from zero."""
    parts = []
    for side in (1.0, -1.0):
        for first in (-2.95, 2.0):
            members = np.full((copies, 1), side * (centre + (first + 0.95) * eta))
            members[0] = side * (centre + first * eta)
            parts.append(members)
    return both(np.concatenate(parts), [centre], [-centre])


def test_v4_gaussian_after_quantisation() -> None:
    pair = quantised_line(10, 0.05, 0.3)
    assert len(pair[0]) == 41
    one, other = (float(np.clip(steps.quantise(x, 0.05), -0.5, 0.5).sum()) for x in pair)
    assert abs(one - other) == pytest.approx(2.31)
    m = Private(kind="gaussian", noise=0.5, records=41)
    divergence = certified_rdp(m.louder(abs(one - other)), 12.0)
    claimed = totals.printed(m, 12.0, 0.05 * sensitivity.clusters_printed(largest_cluster(pair, 0.05)))
    assert (divergence, claimed) == (pytest.approx(8.00415, rel=1e-8), pytest.approx(6.3, rel=1e-8))
    changed = min(41.0, sensitivity.clusters(ball(pair, 0.05)))
    assert divergence <= totals.least(m, 12.0, changed * 2.0 * 0.05, changed)


def test_v5_laplace_after_deduplication_and_quantisation() -> None:
    pair = case(circle(), 4, far=1.0)
    one, other = (half_sum(steps.deduplicate(x, ETA)) for x in pair)
    m = Private(kind="laplace", noise=0.1, records=len(pair[0]))
    divergence = certified_rdp(m.louder(abs(one - other)), 11.0)
    claimed = totals.printed(m, 11.0, sensitivity.clusters_printed(largest_cluster(pair)))
    assert (divergence, claimed) == (pytest.approx(1.5353373, rel=1e-7), pytest.approx(0.9))
    changed = min(float(m.records), sensitivity.clusters(ball(pair)))
    assert divergence <= totals.least(m, 11.0, changed, changed)
    pair = quantised_line(15, 0.02, 0.3)
    one, other = (float(np.clip(steps.quantise(x, 0.02), -0.5, 0.5).sum()) for x in pair)
    m = Private(kind="laplace", noise=0.5, records=len(pair[0]))
    divergence = certified_rdp(m.louder(abs(one - other)), 40.0)
    claimed = totals.printed(m, 40.0, 0.02 * sensitivity.clusters_printed(largest_cluster(pair, 0.02)))
    assert (divergence, claimed) == (pytest.approx(0.81454953, rel=1e-8), pytest.approx(0.8))
    changed = min(float(m.records), sensitivity.clusters(ball(pair, 0.02)))
    assert divergence <= totals.least(m, 40.0, changed * 2.0 * 0.02, changed)


def test_adversarial_divergences_of_the_sixteen_settings() -> None:
    pair = case(circle(), 3, far=1.0)
    one, other = (half_sum(steps.deduplicate(x, ETA)) for x in pair)
    first = Private(kind="gaussian", noise=0.25, records=31)
    assert certified_rdp(first.louder(abs(one - other)), 16.0) == pytest.approx(60.5, rel=1e-8)
    pair = case(circle(), 2)
    sums = [steps.deduplicate(x, ETA)[:, 0].sum() for x in pair]
    fifth = Private(kind="dp-gd", noise=0.2, records=len(pair[0]))
    assert certified_rdp(fifth.louder(abs(sums[0] - sums[1]) / 2.0), 14.0) == pytest.approx(36.3888, rel=1e-8)


HALF = 1.0 / math.sqrt(2.0)


@pytest.mark.parametrize(
    ("row", "one", "other", "moved"),
    [
        ([1.0, 0.0], [math.nan, 1.0], [-1.0, 0.0], math.sqrt(5.0)),
        ([HALF, HALF, 0.0], [-HALF, math.nan, HALF], [math.nan, -HALF, -HALF], math.sqrt(6.0)),
    ],
)
def test_v6_imputation_where_the_replacement_misses_other_entries(
    row: list[float], one: list[float], other: list[float], moved: float
) -> None:
    n = 100
    common = np.tile(row, (n - 1, 1))
    common[-1] = math.nan
    pair = both(common, one, other)
    processed = [steps.imputation(x, "mean")(x)[1:] for x in pair]
    found = steps.distance(*processed)[1]
    observed = min(int((~np.isnan(x)).sum(axis=0).min()) for x in pair)
    assert found == pytest.approx(moved / 99.0, rel=0.002)
    assert found > sensitivity.mean_printed(n, 2)
    assert found <= sensitivity.mean_any_mask(observed, len(row), 1.0)
    if len(row) == 2:
        assert found == pytest.approx(0.0225865, abs=1e-7)


def test_v7_coordinates_along_principal_directions_turn_freely() -> None:
    n, k = 20_000, 3
    spread = np.array([0.9, 0.5, 0.5, 0.3, 0.1])
    common = np.array([sign * scale * axis for scale, axis in zip(spread, np.eye(5), strict=True) for sign in (1, -1)])
    common = np.tile(common, (n // 10 + 1, 1))[: n - 1]
    pair = both(common, (0.6 * np.eye(5)[1]).tolist(), (0.6 * np.eye(5)[2]).tolist())
    from sklearn.decomposition import PCA

    models = [PCA(n_components=k, svd_solver="full").fit(x) for x in pair]
    reduced = [abs(common @ model.components_.T) for model in models]  # signs aside, which are arbitrary as well
    gaps = [-np.diff(model.explained_variance_) for model in models]
    values = [np.linalg.eigvalsh(np.cov(x, rowvar=False))[::-1] for x in pair]
    gap = min(float(v[k - 1] - v[k]) for v in values)
    first = min(float(g[0]) for g in gaps)
    claimed = 2.0 * 4.0 * (3 * n + 2) / (n * (n - 1) * min(gap, first))
    moved = steps.distance(reduced[0], reduced[1])[1]
    assert moved > 2.0 * claimed
    projected = [steps.projection(x, k)(x)[1:] for x in pair]
    assert steps.distance(*projected)[1] <= sensitivity.pca(gap, n).moved


def test_v8_sampled_gradients_with_the_paper_s_noise() -> None:
    m = Private(kind="sgd-sampled", noise=1.0, records=1000, steps=10**6, factor=1.0)
    assert sampled_limit(m) == pytest.approx(6.908, abs=1e-3)
    assert m.sigma == 1.0
    x = np.linspace(-12.0, 14.0, 400_001)
    law = lambda at: np.exp(-0.5 * (x - at) ** 2) / math.sqrt(2.0 * math.pi)  # noqa: E731
    present, absent = 0.999 * law(-1.0) + 0.001 * law(1.0), law(-1.0)
    exact = 1e6 * math.log(np.trapezoid(present**4.0 * absent**-3.0, x)) / 3.0
    assert exact == pytest.approx(9030.0, rel=1e-3)
    assert printed_rdp(m, 4.0) == 8.0
    assert exact <= certified_rdp(m, 4.0) * (1.0 + 1e-6)


def test_v9_batches_drawn_with_replacement() -> None:
    counts = [math.comb(3, j) * 0.25**j * 0.75 ** (3 - j) for j in range(4)]
    exact = math.log(sum(w * math.exp(j * j) for j, w in enumerate(counts)))
    assert exact == pytest.approx(4.911604, abs=1e-6)
    p = lemmas.with_replacement(4, 3, 1)
    assert 2.0 * p + 2.0 * (1.0 - p) == pytest.approx(2.0)
    without = math.log(0.25 + 0.75 * math.e)  # the record is in three of four batches, once
    p = lemmas.without_replacement(4, 3, 1)
    assert without <= 2.0 * p + 2.0 * (1.0 - p)


def test_v10_truncation_costs_the_root_of_the_lost_variance() -> None:
    gap = math.log(2.0) - math.log1p(math.exp(-0.1))
    assert gap == pytest.approx(0.0487505, rel=1e-5)
    assert 0.01 < gap <= lemmas.excess_risk(1.0, 0.01) / 2.0
    m = Private(kind="dp-gd", noise=0.005, records=20000)
    assert m.sigma > 0.0
    distance = 1.2 * ptr.threshold(0.01, 1e-6)
    assert ptr.refusal(distance, 0.01, 1e-6) == pytest.approx(2.0 * ptr.refusal_printed(distance, 1e-6, 0.01))


def test_v11_full_gradients() -> None:
    m = Private(kind="dp-gd", noise=0.3, records=100, steps=9)
    assert certified_rdp(m, 12.0) == pytest.approx(2.16)
    exact = 9 * 12.0 * (2.0 / (100 * m.sigma)) ** 2 / 2.0  # nine Gaussians, the mean gradient moves by 2 L / n
    assert exact == pytest.approx(2.16)
    assert exact > 12.0 * 0.3**2 / 2.0


def test_the_printed_trimmed_mean_would_be_negative() -> None:
    values = np.sort(np.random.default_rng(4).uniform(-1, 1, 50))
    printed = (values[9] - values[39]) / (50 - 20 - 5)
    assert printed < 0.0 < sensitivity.trimmed_mean(values[39] - values[9], 45, 10)
