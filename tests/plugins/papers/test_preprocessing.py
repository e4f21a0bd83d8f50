"""Published statements that explicit data exceed in the executed code; proved bounds hold on the same data."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from support.preprocessing_steps import count_in_balls, moved_distance

from dpspec_papers.preprocessing import largest_sampled_order, printed_rdp
from dpspec_preprocessing import sensitivity, steps
from dpspec_preprocessing.engines import LinearEngine
from dpspec_preprocessing.private import Private, PrivateMechanism, repaired_rdp

Rows = npt.NDArray[np.float64]
ETA = 0.01


def around(centre: Sequence[float], directions: Rows, copies: int, reach: float = 2.99) -> Rows:
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


def case(directions: Rows, copies: int, far: float = 0.95) -> tuple[Rows, Rows]:
    d = directions.shape[1]
    one, other = np.zeros(d), np.zeros(d)
    one[0], other[0] = far, -far
    common = np.concatenate([around(at, directions, copies) for at in (one, other)])
    return both(common, one.tolist(), other.tolist())


@pytest.mark.parametrize(
    ("pair", "copies", "changed"), [(case(circle(), 10), 10, 90), (case(icosahedron(), 10), 10, 216)]
)
def test_v1_one_record_destroys_many_clusters(pair: tuple[Rows, Rows], copies: int, changed: int) -> None:
    processed = [steps.deduplicate(x, ETA)[1:] for x in pair]
    found = moved_distance(*processed)
    assert max(steps.Neighbourhoods(x).good_clusters(ETA).largest for x in pair) == copies
    assert found[0] == changed
    assert found[0] > 2 * copies  # Proposition 3
    assert found[0] <= 2 * max(int(count_in_balls(x, 8.0 * ETA).max()) for x in pair)
    assert found[1] <= 1.0


@pytest.mark.parametrize(
    ("common", "one", "other", "moved"),
    [
        ([[0.6 * ETA, 0.0], [-0.6 * ETA, 0.0]], [0.0, 0.79 * ETA], [0.0, -0.79 * ETA], 1.58),
        ([[0.0, 0.0]], [0.0, 0.999 * ETA], [0.0, -0.999 * ETA], 1.998),
    ],
)
def test_v2_quantised_records_move_by_two_eta(common, one, other, moved):
    processed = [steps.quantise(x, ETA)[1:] for x in both(np.array(common), one, other)]
    found = moved_distance(*processed)[1]
    assert found == pytest.approx(moved * ETA)
    assert ETA < found <= 2.0 * ETA


HALF = 1.0 / math.sqrt(2.0)


@pytest.mark.parametrize(
    ("row", "one", "other", "moved"),
    [
        ([1.0, 0.0], [math.nan, 1.0], [-1.0, 0.0], math.sqrt(5.0)),
        ([HALF, HALF, 0.0], [-HALF, math.nan, HALF], [math.nan, -HALF, -HALF], math.sqrt(6.0)),
    ],
)
def test_v6_imputation_where_the_replacement_misses_other_entries(row, one, other, moved):
    n = 100
    common = np.tile(row, (n - 1, 1))
    common[-1] = math.nan
    pair = both(common, one, other)
    processed = [steps.fit_imputation(x, "mean")(x)[1:] for x in pair]
    found = moved_distance(*processed)[1]
    observed = min(int((~np.isnan(x)).sum(axis=0).min()) for x in pair)
    assert found == pytest.approx(moved / 99.0, rel=0.002)
    assert found > sensitivity.mean_same_mask(n - 2)
    assert found <= sensitivity.mean_any_mask(observed, len(row), 1.0)
    if len(row) == 2:
        assert found == pytest.approx(0.0225865, abs=1e-7)


def test_v7_coordinates_along_principal_directions_turn_freely() -> None:
    n, k = 200_000, 3
    spread = np.sqrt([0.81, 0.25, 0.25 - 5e-7, 0.09, 0.01])  # the second eigenvalue exceeds the third by 1e-7
    common = np.array([sign * scale * axis for scale, axis in zip(spread, np.eye(5), strict=True) for sign in (1, -1)])
    common = np.tile(common, (n // 10, 1))[: n - 1]
    common[-9:] = 0.0
    pair = both(common, (0.6 * np.eye(5)[1]).tolist(), (0.6 * np.eye(5)[2]).tolist())
    from sklearn.decomposition import PCA

    models = [PCA(n_components=k, svd_solver="full").fit(x) for x in pair]
    reduced = [abs(common[:10] @ model.components_.T) for model in models]  # signs aside, which are arbitrary as well
    values = [steps.covariance_spectrum(x) for x in pair]
    assert values[0][1] - values[0][2] == pytest.approx(0.36 / n + 1e-7, rel=0.1)
    gap, first = (min(float(v[i] - v[i + 1]) for v in values) for i in (k - 1, 0))
    claimed = 2.0 * 4.0 * (3 * n + 2) / (n * (n - 1) * min(gap, first))
    moved = moved_distance(reduced[0], reduced[1])[1]
    assert moved > 66.0 * claimed
    projected = moved_distance(*(steps.fit_projection(x, k)(x)[1:] for x in pair))[1]
    assert projected < 1e-14
    assert projected <= sensitivity.pca(gap, n).moved


def test_v8_sampled_gradients_with_the_paper_s_noise() -> None:
    m = PrivateMechanism(kind="sgd-sampled", noise=1.0, records=1000, steps=10**6, factor=1.0)
    assert largest_sampled_order(m) == pytest.approx(6.908, abs=1e-3)
    assert m.sigma == 1.0
    x = np.linspace(-12.0, 14.0, 400_001)
    law = lambda at: np.exp(-0.5 * (x - at) ** 2) / math.sqrt(2.0 * math.pi)  # noqa: E731
    present, absent = 0.999 * law(-1.0) + 0.001 * law(1.0), law(-1.0)
    exact = 1e6 * math.log(np.trapezoid(present**4.0 * absent**-3.0, x)) / 3.0
    assert exact == pytest.approx(9030.0, rel=1e-3)
    assert printed_rdp(m, 4.0) == 8.0
    assert exact <= repaired_rdp(m, 4.0) * (1.0 + 1e-6)


def test_v9_batches_drawn_with_replacement() -> None:
    counts = [math.comb(3, j) * 0.25**j * 0.75 ** (3 - j) for j in range(4)]
    exact = math.log(sum(w * math.exp(j * j) for j, w in enumerate(counts)))
    assert exact == pytest.approx(4.911604, abs=1e-6)
    lemma_2 = 2.0  # twice the curve's value at k = 1, the only k for batches of 3 of 4 records
    assert exact > lemma_2
    without = math.log(0.25 + 0.75 * math.e)  # the record is in three of four batches, once
    assert without <= lemma_2


def test_v10_truncation_costs_the_root_of_the_lost_variance() -> None:
    """Labels follow the lost direction, so projected records do not determine them."""
    labels = np.tile([1.0, 1.0, -1.0, -1.0], 500)
    x = np.stack([np.tile([0.9, -0.9], 1000), 0.1 * labels], axis=1)
    tail = float(steps.covariance_spectrum(x)[1:].sum())
    assert tail == pytest.approx(0.01, rel=1e-3)
    losses = [
        np.logaddexp(0.0, -labels * rows[:, 1]).mean() for rows in (steps.fit_projection(x, 1)(x), x)
    ]  # at parameters (0, 1)
    gap = float(losses[0] - losses[1])
    assert gap == pytest.approx(0.0487505, rel=1e-5)
    assert 2.0 * tail < gap <= math.sqrt(tail)  # Proposition 8 for L = 1 has 2 L tail


def test_v11_full_gradients() -> None:
    """One step from 0 on a squared loss: records e and labels -1 and 1 give gradients of norm 1, opposite ones."""
    m = PrivateMechanism(kind="dp-gd", noise=0.3, records=100)
    engine = LinearEngine(private=m, radius=1.0, declared=Private(kind="dp-gd", loss="squared"))
    x, theta, labels = np.eye(2)[[0] * 100], np.zeros(2), np.ones(100)
    other = np.concatenate([[-1.0], labels[1:]])
    shift = np.linalg.norm((engine.gradients(theta, x, labels) - engine.gradients(theta, x, other)).mean(axis=0))
    exact = 12.0 * (float(shift) / m.sigma) ** 2 / 2.0
    assert exact == pytest.approx(2.16)
    stated = 12.0 * 0.3**2 / 2.0  # Theorem 12; its Table 1 has four times as much
    assert stated == pytest.approx(0.54)
    assert stated < exact <= repaired_rdp(m, 12.0) * (1.0 + 1e-12)
