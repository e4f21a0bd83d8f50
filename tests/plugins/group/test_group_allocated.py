"""Random allocation from spec to verdict: bounds against explicit neighbours, refusals, runs that conform or do not."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from support import scope_oracle as oracle

import dpspec
from dpspec.accounting import Interval, PrivacyLoss, RandomAllocation, gaussian
from dpspec.contract import FrozenMap, Phase
from dpspec.engine.preparing.prepare import check
from dpspec.errors import UsageError
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.training.loop import samplers
from dpspec.training.loop.native import parts_of
from dpspec_group import theory
from dpspec_group.scores import allocated_log_ratio

pytestmark = pytest.mark.usefixtures("no_independent_bounds", "claimed_deltas_alone")

Array = np.ndarray[Any, Any]

SPEC = """\
dpspec: 1
name: allocated
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: random-allocation, epoch_steps: 5}
  steps: 40
data: {kind: synthetic, records: 200, features: 64, classes: 2, seed: 1}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: [1, 3]}
claims:
  - {id: one, kind: approx-dp, epsilon: 5.0, delta: 1e-5}
  - {id: three, kind: approx-dp, epsilon: 25.0, delta: 1e-5, group_size: 3}
  - {id: low, kind: approx-dp, epsilon: 3.0, delta: 1e-5}
  - {id: rate, kind: membership, fpr: 0.001, tpr: 0.9}
  - {id: mu, kind: gdp, mu: 2.0}
"""

#: Fewer groups and claims, which take most of the time.
SHORT = "\n".join(
    line
    for line in SPEC.replace("[1, 3]", "1").splitlines()
    if not any(f"id: {name}," in line for name in ("three", "mu"))
)

AUDIT = "\naudit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 32}, seed: 1}\n"


def phase_of(epoch_steps: int, sigma: float, epochs: int = 1) -> Phase:
    sampling = {"scheme": "random-allocation", "epoch_steps": epoch_steps}
    return Phase(
        {"steps": epoch_steps * epochs, "clip_norm": 1.0, "noise_multiplier": sigma, "sampling": FrozenMap(sampling)}
    )


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "allocated.yaml"
    path.write_text(text)
    return path


def messages(tmp_path: Path, text: str) -> list[str]:
    loaded = load_specs([written(tmp_path, text)], load_catalog())
    if not loaded.ok:
        return [d.message for d in loaded.diagnostics]
    return [d.message for spec in loaded.specs for d in check(spec, load_catalog()) if d.severity == "error"]


def test_verdicts_speak_of_all_data(tmp_path: Path) -> None:
    (audit,) = dpspec.run(written(tmp_path, SPEC)).audits
    assert {verdict.claim: verdict.verdict for verdict in audit.verdicts} == {
        "one": "proved",
        "three": "proved",
        "low": "refuted",
        "rate": "proved",
        "mu": "proved",
    }
    uppers = [f for f in audit.findings if f.quantity == "epsilon" and f.bound == "upper"]
    lowers = [f for f in audit.findings if f.quantity == "epsilon" and f.bound == "lower"]
    assert {(f.scope.data, f.scope.min_records) for f in uppers} == {("all", 0)}
    assert lowers
    assert all("RandomAllocation" in f.source for f in lowers)


def test_what_is_not_covered_is_refused(tmp_path: Path) -> None:
    assert messages(tmp_path, SPEC) == []
    (message,) = messages(tmp_path, SPEC.replace("steps: 40", "steps: 42"))
    assert message == "steps must be a multiple of epoch_steps = 5, got 42"
    assert messages(tmp_path, SPEC.replace(", epoch_steps: 5", ""))
    assert messages(tmp_path, SPEC.replace("random-allocation", "poisson"))
    assert messages(tmp_path, SPEC.replace("epoch_steps: 5", "epoch_steps: 5, rate: 0.2"))
    replaced = SPEC.replace("{group_size: [1, 3]}", "{group_size: [1, 3], adjacency: replace-one}")
    assert any("replac" in message for message in messages(tmp_path, replaced))


def test_conversions_that_have_no_profile_to_start_from_are_refused(tmp_path: Path) -> None:
    asked = SPEC.replace("mechanism:\n", "mechanism:\n  baselines: [linear, full-batch, vadhan-literal]\n", 1)
    assert asked != SPEC
    assert any(
        "vadhan-literal cannot be computed for random-allocation batches" in message
        for message in messages(tmp_path, asked)
    )
    assert not messages(tmp_path, asked.replace(", vadhan-literal", ""))


def test_members_that_stay_and_count_for_nothing_are_covered(tmp_path: Path) -> None:
    zeroed = SPEC.replace("{group_size: [1, 3]}", "{group_size: [1, 3], adjacency: zero-out}")
    assert messages(tmp_path, zeroed) == []
    (audit,) = dpspec.run(written(tmp_path, zeroed)).audits
    assert {v.claim: v.verdict for v in audit.verdicts}["one"] == "proved"
    assert messages(tmp_path, zeroed + AUDIT)


@pytest.mark.parametrize("kind", ["per-instance", "rero", "modelmix", "preprocessing"])
def test_no_other_mechanism_takes_what_it_does_not_cover(kind: str, tmp_path: Path) -> None:
    example = load_catalog().mechanisms[kind].provider.example
    scheme = "{scheme: poisson, rate:"
    if scheme not in example:
        assert "scheme" not in example  # it has no sampling at all
        return
    begin = example.index(scheme)
    end = example.index("}", begin)
    allocated = example[:begin] + "{scheme: random-allocation, epoch_steps: 1" + example[end:]
    assert messages(tmp_path, example) == []
    assert any("random-allocation" in message for message in messages(tmp_path, allocated))


def test_opacus_does_not_draw_them() -> None:
    pytest.importorskip("opacus")
    from dpspec.testing.backend import small_job
    from dpspec.training.opacus_backend import OpacusTrainer

    options = FrozenMap({"learning_rate": 0.1, "optimizer": "sgd", "reduction": "mean"})
    job = small_job(options=options, sampling={"scheme": "random-allocation", "epoch_steps": 2}, steps=2)
    with pytest.raises(UsageError, match="random-allocation"):
        OpacusTrainer().train(job)


# --- explicit neighbours, by executed code


def epoch_laws(phase: Phase, x: Sequence[float], y: Sequence[int], given: Sequence[float], grid: Array) -> Array:
    """(points, points) the density of two steps' noisy sums, over all allocations; step two begins where one led.

    Contributions and updates are those of the native loop; the sum over allocations is exact.
    """
    job = oracle.run_of([phase], x, y, given)
    parts = parts_of(job)
    records, sigma = len(x) + len(given), phase.noise_multiplier * phase.clip_norm
    schedule = list(parts.schedule)
    density = np.zeros((len(grid), len(grid)))
    after = [parts.update(parts.initial, torch.tensor([float(s)])) for s in grid]
    states = after if x else [parts.initial]  # given gradients are the same at any model

    def added(state: torch.Tensor, batch: Sequence[int]) -> float:
        return float(parts.contributions(state, torch.tensor(batch, dtype=torch.int64), schedule[0].clip).sum)

    for first in itertools.product((True, False), repeat=records):
        one = [i for i in range(records) if first[i]]
        two = [i for i in range(records) if not first[i]]
        means = np.array([added(state, two) for state in states])
        early = np.exp(-0.5 * ((grid - added(parts.initial, one)) / sigma) ** 2)
        late = np.exp(-0.5 * ((grid[None, :] - means[:, None]) / sigma) ** 2)
        density += early[:, None] * late / 2.0**records
    return density / (2.0 * math.pi * sigma**2)


def divergences(first: Array, second: Array, grid: Array, epsilon: float) -> Iterator[float]:
    cell = (grid[1] - grid[0]) ** 2
    for p, q in ((first, second), (second, first)):
        yield float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * cell)


GRID = np.linspace(-11.0, 11.0, 353)
FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
GRADIENTS = (0.0, 0.4, -0.7, 1.0, -1.0, 3.0, -1e30, float("nan"))


@functools.lru_cache(maxsize=256)
def certified(phase: Phase, size: int, epsilon: float, direction: str) -> Interval:
    """Of delta."""
    (found,) = theory.loss_intervals([phase], size, 4, direction, lambda loss: [loss.delta(epsilon, width=1e-3)])
    return found


@settings(max_examples=25, **FEW)
@given(
    st.just(1.5),
    st.just(1.0),
    st.lists(st.sampled_from(GRADIENTS), max_size=2),
    st.lists(st.sampled_from(GRADIENTS), min_size=1, max_size=3),
)
def test_no_given_gradients_leak_more(sigma: float, epsilon: float, others: list[float], group: list[float]) -> None:
    phase = phase_of(2, sigma)
    absent, present = (epoch_laws(phase, [], [], rows, GRID) for rows in (others, others + group))
    for direction, found in zip(("remove", "add"), divergences(present, absent, GRID, epsilon), strict=True):
        assert found <= certified(phase, len(group), epsilon, direction).upper + 1e-4


@settings(max_examples=4, **FEW)
@given(
    st.just(1.5),
    st.just(1.0),
    st.lists(st.sampled_from((0.5, -1.0, 4.0, 40.0)), min_size=2, max_size=3),
    st.integers(1, 2),
    st.data(),
)
def test_no_real_records_leak_more(
    sigma: float, epsilon: float, x: list[float], size: int, data: st.DataObject
) -> None:
    """What the second step adds rests on what the first one released."""
    size, phase = min(size, len(x) - 1), phase_of(2, sigma)
    y = data.draw(st.lists(st.integers(0, 1), min_size=len(x), max_size=len(x)))
    grid = GRID[::6]
    absent, present = (epoch_laws(phase, x[:n], y[:n], [], grid) for n in (len(x) - size, len(x)))
    for direction, found in zip(("remove", "add"), divergences(present, absent, grid, epsilon), strict=True):
        assert found <= certified(phase, size, epsilon, direction).upper + 1e-3


@pytest.mark.parametrize("sigma", [0.7, 1.5])
@pytest.mark.parametrize("epsilon", [1.0])
def test_one_record_attains_it_and_groups_lie_between_the_ends(sigma: float, epsilon: float) -> None:
    phase = phase_of(2, sigma)
    for size in (1, 2, 3):
        absent, present = (epoch_laws(phase, [], [], [2.0] * count, GRID) for count in (0, size))
        for direction, found in zip(("remove", "add"), divergences(present, absent, GRID, epsilon), strict=True):
            interval = certified(phase, size, epsilon, direction)
            assert interval.lower - 1e-4 <= found <= interval.upper + 1e-4  # of the plane's cells
            if size == 1:
                assert interval.width <= 1e-2 * found + 1e-9


def test_groups_of_many_steps_against_simulation() -> None:
    """The pair of a group along one direction, drawn: within the interval, up to six standard errors."""
    sigma, steps, size, epochs, draws, epsilon = 2.0, 12, 3, 2, 100_000, 1.0
    rng = np.random.default_rng(3)
    totals = {"remove": np.zeros(draws), "add": np.zeros(draws)}
    for _ in range(epochs):
        z = rng.normal(0.0, sigma, (steps, draws))
        totals["add"] -= allocated_log_ratio(z, size, sigma)
        for _ in range(size):
            z[rng.integers(steps, size=draws), np.arange(draws)] += 1.0
        totals["remove"] += allocated_log_ratio(z, size, sigma)
    for direction, losses in totals.items():
        gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
        error = 6.0 * float(gains.std()) / draws**0.5
        found = certified(phase_of(steps, sigma, epochs), size, epsilon, direction)
        assert found.lower - error <= float(gains.mean()) <= found.upper + error
        assert found.lower > 0.2 * found.upper


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from((0.5, 1.0, 3.0)), st.integers(0, 10**6))
def test_the_score_of_an_epoch_is_the_mean_over_all_allocations(steps: int, size: int, sigma: float, seed: int) -> None:
    z = np.random.default_rng(seed).normal(0.5, 2.0, (steps, 3))
    terms = []
    for where in itertools.product(range(steps), repeat=size):
        counts = np.bincount(where, minlength=steps)[:, None]
        terms.append(((counts * z - 0.5 * counts**2) / sigma**2).sum(axis=0))
    exact = logsumexp(np.array(terms), axis=0) - size * math.log(steps)
    assert allocated_log_ratio(z, size, sigma) == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_one_step_epochs_are_full_batches() -> None:
    for size in (1, 3):
        (found,) = theory.group_epsilons([phase_of(1, 2.0, 4)], size, 100, [1e-6], "remove")
        assert float(gaussian.epsilon(1e-6, 2.0 * size / 2.0)) in found


def test_noise_that_is_too_small_to_split_is_not_split() -> None:
    """Down to a tenth of a clip norm a member's pair is computed; below, all members are told of their steps."""
    for size, sigma in ((1, 0.1), (1, 0.05), (4, 0.15)):
        phase = phase_of(3, sigma)
        (found,) = theory.group_epsilons([phase], size, 100, [1e-6], "remove")
        most = float(gaussian.epsilon(1e-6, size / sigma))
        assert 0.0 < found.lower <= found.upper <= most * (1.0 + 1e-3)
    (tight,) = theory.group_epsilons([phase_of(3, 0.1)], 1, 100, [1e-6], "remove")
    assert tight.width <= 1e-2 * (1.0 + tight.upper)


@pytest.mark.parametrize(
    ("steps", "sigma", "epochs", "low", "high"), [(10, 1.0, 10, 13.81, 16.26), (4, 0.5, 1, 20.3, 21.62)]
)
def test_pairs_have_the_smaller_upper_end_and_what_equal_records_attain(
    steps: int, sigma: float, epochs: int, low: float, high: float
) -> None:
    """With the noise split alone [10.0, 18.07] and [12.7, 21.62]; with shared steps revealed alone 16.26 and 21.71."""
    (found,) = theory.group_epsilons([phase_of(steps, sigma, epochs)], 2, 100, [1e-5], "remove")
    split, shared = (
        PrivacyLoss(((pair, times * epochs),), "present-first").epsilon(1e-5).upper
        for pair, times in (
            (RandomAllocation(steps, sigma / math.sqrt(2.0)), 2),
            (RandomAllocation(steps, sigma, 2), 1),
        )
    )
    assert found.upper == pytest.approx(min(split, shared), rel=1e-6)
    assert low <= found.lower <= found.upper <= high


def test_without_noise_every_epoch_shows_who_is_there() -> None:
    for direction in theory.DIRECTIONS:
        (found,) = theory.group_epsilons([phase_of(3, 0.0)], 1, 100, [0.5], direction)
        assert found.lower == math.inf


def test_groups_lose_no_less_than_records_and_no_more_than_without_amplification() -> None:
    phase = phase_of(10, 3.0, 5)
    for direction in theory.DIRECTIONS:
        found = [theory.group_epsilons([phase], size, 100, [1e-5], direction)[0] for size in (1, 2, 4)]
        assert found[0].upper < found[1].upper < found[2].upper
        assert found[0].lower <= found[1].lower <= found[2].lower
        for size, interval in zip((1, 2, 4), found, strict=True):
            assert interval.upper <= float(gaussian.epsilon(1e-5, size * math.sqrt(5.0) / 3.0)) * (1.0 + 1e-3)
    assert theory.mu_of_all_steps([phase], 2, 100) == pytest.approx(2.0 * math.sqrt(5.0) / 3.0)


def test_phases_of_several_schemes_compose() -> None:
    poisson = phase_of(10, 3.0, 5).replace(sampling=FrozenMap({"scheme": "poisson", "rate": 0.1}))
    alone, both = (
        theory.group_epsilons(phases, 2, 100, [1e-5], "remove")[0]
        for phases in ([phase_of(10, 3.0, 5)], [phase_of(10, 3.0, 5), poisson])
    )
    assert alone.lower < both.lower <= both.upper
    assert alone.upper < both.upper


# --- runs


def test_a_run_conforms_and_its_checks_are_the_promised_ones(tmp_path: Path) -> None:
    (audit,) = dpspec.run(written(tmp_path, SHORT + AUDIT), store=tmp_path / "store").audits
    assert audit.conformance.status == "no-deviation-found"
    sampling = [found.note for found in audit.checks if found.assumption == "sampling"]
    assert any("batches of each epoch" in note for note in sampling)
    assert any("variance of the batch size" in note for note in sampling)


def broken(self: samplers.RandomAllocation, generator: torch.Generator) -> torch.Tensor:
    """Poisson samples of the same rate."""
    return samplers.Poisson(self.records, self.inclusion).draw(generator)


def sticky(self: samplers.RandomAllocation, generator: torch.Generator) -> torch.Tensor:
    """The first epoch's batches, again and again."""
    if self._steps is not None and self._taken >= self.epoch_steps:
        self._taken = 0
    return DRAW(self, generator)


def doubled(self: samplers.RandomAllocation, generator: torch.Generator) -> torch.Tensor:
    """One record is in every second batch as well."""
    batch = DRAW(self, generator)
    return torch.unique(torch.cat([batch, torch.tensor([7])])) if self._taken % 2 else batch


DRAW = samplers.RandomAllocation.draw


@pytest.mark.parametrize("fault", [broken, sticky, doubled])
def test_a_loop_that_allocates_otherwise_deviates(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers.RandomAllocation, "draw", fault)
    (audit,) = dpspec.run(written(tmp_path, SHORT + AUDIT), store=tmp_path / "store").audits
    assert audit.conformance.status == "deviates"
    assert min(c.p_value for c in audit.checks if c.assumption != "sampling") > 1e-6


@pytest.mark.parametrize(
    "audit",
    [
        "{method: one-run, canary: {space: input, kind: mislabelled, count: 32}, seed: 1}",
        "{method: many-run, runs: 16, canary: {space: gradient, kind: orthogonal}, seed: 1}",
    ],
)
def test_other_attacks_run_on_it(audit: str, tmp_path: Path) -> None:
    text = SHORT.replace("steps: 40", "steps: 10")
    (found,) = dpspec.run(written(tmp_path, f"{text}\naudit: {audit}\n"), store=tmp_path / "store").audits
    assert found.conformance.status == "no-deviation-found"
    assert found.evidence
