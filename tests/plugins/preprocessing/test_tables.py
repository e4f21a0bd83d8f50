"""Published statements that explicit data exceed in the executed code; proved bounds hold on the same data."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from support.preprocessing_steps import count_in_balls, moved_distance

from dpspec_preprocessing import sensitivity, steps
from dpspec_preprocessing.engines import LinearEngine
from dpspec_preprocessing.private import Private, PrivateMechanism, repaired_rdp
from dpspec_preprocessing.tables import largest_sampled_order, printed_rdp

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
