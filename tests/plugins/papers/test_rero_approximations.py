"""Approximations of gamma compared with closed forms and certified values."""

import math

import numpy as np
import pytest
from scipy import integrate, stats
from support.rero_values import BY_NAME, CIFAR, IMAGENET, IMAGENET_RATE

from dpspec_papers import rero_approximations as approximations
from dpspec_papers.rero_approximations import (
    clt_effect,
    gamma_clt,
    gamma_from_epsilon_delta,
    printed_pure_epsilon,
    tabulate_loss,
)
from dpspec_rero.options import Steps, revealed_probability
from dpspec_rero.theory import Leakage, pure_epsilon

EDGEWORTH = {
    "S5": (0.2349585011, 0.1827767379, 0.1982635160, 0.1960892629, 0.1931835156),
    "S6": (0.5008560283, 0.4656146073, 0.4694329681, 0.4691809780, 0.4691726948),
    "S9": (0.0048756442, 0.0044551262, 0.0041590009, 0.0040710785, 0.0040603947),
    "B5": (0.3667385362, 0.3576310558, 0.3577516813, 0.3577404467, 0.3577370559),
}
RENYI = {"S5": 0.26144397467, "S6": 0.67929364258, "S7": 0.232772, "S8": 0.0160553, "S9": 0.00494519132902}


@pytest.mark.parametrize("name", sorted(EDGEWORTH))
def test_edgeworth_of_every_order(name: str) -> None:
    value = BY_NAME[name]
    for order, expected in enumerate(EDGEWORTH[name]):
        (found,) = approximations.gammas_edgeworth([value.kappa], value.phases, order)
        assert found == pytest.approx(expected, abs=1.0e-10), order


def test_the_printed_exponent_is_right_at_one_and_three_times_too_large_at_a_tenth() -> None:
    one, tenth = (Steps(noise="gaussian", effect=effect, rate=0.1, count=100) for effect in (1.0, 0.1))
    assert clt_effect([one]) == clt_effect([one], as_printed=True)
    assert clt_effect([tenth], as_printed=True) / clt_effect([tenth]) == pytest.approx(3.235, abs=1e-3)
    with pytest.raises(ValueError, match="Laplace"):
        clt_effect([Steps(noise="laplace", effect=1.0, rate=0.1, count=1)], as_printed=True)


def test_an_effect_beyond_floating_point_is_certain() -> None:
    assert gamma_clt(1e-7, [Steps(noise="gaussian", effect=40.0, rate=0.1, count=1)]) == 1.0


@pytest.mark.parametrize("name", sorted(RENYI))
def test_renyi(name: str) -> None:
    value = BY_NAME[name]
    (gamma,) = approximations.gammas_rdp([value.kappa], value.phases)
    assert gamma == pytest.approx(RENYI[name], rel=1e-8 if len(str(RENYI[name])) > 10 else 1e-5)


def test_renyi_of_sampled_laplace_against_quadrature() -> None:
    s, p, a = 1.3, 0.2, 3.7

    def integrand(x: float) -> float:
        ratio = 1.0 - p + p * math.exp(abs(x) - abs(x - s))
        return stats.laplace.pdf(x) * ratio**a

    moment = sum(integrate.quad(integrand, low, high)[0] for low, high in ((-40, 0), (0, s), (s, 40)))
    step = Steps(noise="laplace", effect=s, rate=p, count=1)
    assert float(tabulate_loss(step).moment([a])[0]) == pytest.approx(math.log(moment), rel=1e-9)


def test_tables_are_laws_under_both_hypotheses() -> None:
    for noise in ("gaussian", "laplace"):
        for effect, rate in ((0.05, 1.0), (1.0, 0.01), (3.0, 0.5), (20.0, 0.1)):
            step = Steps(noise=noise, effect=effect, rate=rate, count=1)  # type: ignore[arg-type]
            assert np.asarray(tabulate_loss(step).moment([0.0, 1.0])) == pytest.approx([0.0, 0.0], abs=1e-12)
    with pytest.raises(ArithmeticError, match="too large"):
        tabulate_loss(Steps(noise="gaussian", effect=1e6, rate=0.1, count=1))
    with pytest.raises(ArithmeticError, match="too large"):
        tabulate_loss(Steps(noise="laplace", effect=1e6, rate=0.1, count=1))


@pytest.mark.parametrize(
    ("effect", "rate", "steps", "values"), [(0.1, 0.08192, 875, CIFAR), (0.4, IMAGENET_RATE, 71589, IMAGENET)]
)
def test_figure_2(effect: float, rate: float, steps: int, values: tuple[tuple[float, float], ...]) -> None:
    """The fourth order agrees to better than 3e-7 in every row; the central limit is off by up to a percent."""
    phases = (Steps(noise="gaussian", effect=effect, rate=rate, count=steps),)
    kappas = [kappa for kappa, _ in values]
    exact = [gamma for _, gamma in values]
    assert approximations.gammas_edgeworth(kappas, phases) == pytest.approx(exact, rel=3e-7)
    off = [gamma_clt(kappa, phases) / gamma - 1.0 for kappa, gamma in values]
    assert off[0] < -0.005
    assert max(map(abs, off)) < 0.012


def test_without_sampling_edgeworth_is_the_normal_law() -> None:
    phases = (Steps(noise="gaussian", effect=0.1, rate=1.0, count=100),)
    exact = [float(stats.norm.sf(stats.norm.isf(kappa) - 1.0)) for kappa in (1e-6, 0.1, 0.7)]
    assert approximations.gammas_edgeworth([1e-6, 0.1, 0.7], phases) == pytest.approx(exact, rel=1e-9)


def test_edgeworth_withholds_what_cannot_be() -> None:
    few = (Steps(noise="gaussian", effect=4.0, rate=0.01, count=3),)
    found = approximations.gammas_edgeworth([1e-7, 1e-3, 0.1], few)
    assert None in found
    assert all(value is None or kappa <= value <= 1.0 for kappa, value in zip([1e-7, 1e-3, 0.1], found, strict=True))
    with pytest.raises(ValueError, match="order"):
        approximations.gammas_edgeworth([0.1], few, 5)


@pytest.mark.parametrize(
    ("kappa", "epsilon", "delta", "literal", "sharper"),
    [
        (0.1, 4.78435, 1e-3, 1.0, 0.9925),
        (0.1, 7.046603, 1e-5, 1.0, 0.9992),
        (1e-4, 4.78435, 1e-3, 0.01296, 0.01296),
        (1e-4, 8.058608, 1e-6, 0.3161, 0.3161),
    ],
)
def test_from_one_epsilon_and_delta(kappa: float, epsilon: float, delta: float, literal: float, sharper: float) -> None:
    assert gamma_from_epsilon_delta(kappa, epsilon, delta, both=False) == pytest.approx(literal, rel=2e-3)
    assert gamma_from_epsilon_delta(kappa, epsilon, delta, both=True) == pytest.approx(sharper, rel=2e-3)


def test_epsilon_and_delta_that_make_no_sense_are_refused() -> None:
    wrong = ((0.0, 1.0, 0.1), (1.1, 1.0, 0.1), (0.5, -1.0, 0.1), (0.5, 1.0, 1.0), (0.5, 1.0, -0.1))
    for kappa, epsilon, delta in wrong:
        with pytest.raises(ValueError, match=r"kappa|epsilon|delta"):
            gamma_from_epsilon_delta(kappa, epsilon, delta, both=True)


def test_a_pure_epsilon_bounds_gamma_and_is_the_sum_over_steps() -> None:
    phases = (Steps(noise="laplace", effect=0.5, rate=0.1, count=10),)
    assert pure_epsilon(phases) == pytest.approx(0.629, abs=5e-4)
    assert printed_pure_epsilon(phases) == pytest.approx(2.756, abs=5e-4)
    small = (Steps(noise="laplace", effect=0.1, rate=0.01, count=100),)
    assert pure_epsilon(small) == pytest.approx(0.105, abs=5e-4)
    assert printed_pure_epsilon(small) == pytest.approx(5.399, abs=5e-4)
    assert pure_epsilon((Steps(noise="gaussian", effect=1.0, rate=1.0, count=1),)) == math.inf


def test_steps_without_noise_show_the_record_whenever_it_is_drawn() -> None:
    """Large effects tend to the value without noise: 1 - (1 - p)^N (1 - kappa)."""
    bare = Steps(noise="gaussian", effect=math.inf, rate=0.1, count=10)
    assert revealed_probability((bare,)) == pytest.approx(1.0 - 0.9**10)
    leak = Leakage((bare,))
    assert leak.gammas([0.1])[0].upper == pytest.approx(0.68618940391, rel=1e-10)
    assert leak.advantage().upper == pytest.approx(1.0 - 0.9**10)
    assert leak.epsilons([1e-5], "both")[0].lower == math.inf
    assert leak.tprs([0.1], "add")[0].upper == pytest.approx(0.1 / 0.9**10)
    mixed = Leakage((bare, Steps(noise="gaussian", effect=1.0, rate=1.0, count=1)))
    hidden = 0.38914369164536
    assert mixed.gammas([0.1])[0].upper == pytest.approx(1.0 - 0.9**10 * (1.0 - hidden), rel=1e-10)
    assert mixed.gammas([0.1])[0].upper > leak.gammas([0.1])[0].upper


def test_no_effect_leaves_guessing() -> None:
    leak = Leakage((Steps(noise="gaussian", effect=0.0, rate=0.5, count=100),))
    assert [interval.upper for interval in leak.gammas([1e-7, 0.1, 1.0])] == pytest.approx([1e-7, 0.1, 1.0], rel=1e-12)
