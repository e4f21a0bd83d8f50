"""Both ends of epsilon of a recorded schedule: a charge widens the upper end, the lower end stays what data attain.

The oracle is the closed form of the Gaussian mechanism: at rate 1, steps with the multipliers s have mu = |1 / s|.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from support.accounting_oracle import gaussian_epsilon
from support.checked_runs import Question, checked, run_page
from support.facts_only import START, run_with
from support.opacus_training import Training
from torch import nn

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.engine.stated_claim import run_spec
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec_recording.folder.events import OptionChange
from dpspec_recording.folder.recording import Recording
from dpspec_recording.judge import check
from dpspec_recording.judge.bounds import ScheduleBounds, ScheduleEpsilon, shuffled_epsilon
from dpspec_recording.judge.findings import schedule_findings
from dpspec_recording.judge.recorded_run import RecordedRun, float32_excess
from dpspec_recording.observers.sensitivity.clip_limits import ClipLimitFacts, ClipLimits
from dpspec_recording.observers.sensitivity.contributions import ContributionFacts, Contributions
from dpspec_recording.observers.update_rule.gradient_map import GradientMap
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradientFacts, NoisyGradients
from dpspec_recording.observers.update_rule.reported_gradients import GradientFacts, ReportedGradients
from dpspec_recording.step_replay.facts import MapFacts

STEPS, DELTA, SIGMA = 24, 1e-5, 4.0


def run_of(facts: Any = None, *, layer: int = 100, largest: float = 1.0, **made: Any) -> RecordedRun:
    """A run of full batches with one noisy parameter of ``layer`` values."""
    columns = {"rate": 1.0, "noise_multiplier": SIGMA, "deviation": SIGMA, "noise_squares": layer * SIGMA**2}
    columns |= made.pop("columns", {})
    header = {"clipping": "flat", "layers": (("weight", layer),), "dtypes": ("float32",), **made}
    run = run_with(facts or {}, steps=STEPS, columns=columns, **header)
    whole = dataclasses.replace(run, layers=np.full(1, float(layer)), quietest=np.full(1, float(layer)))
    vars(whole)["internal"] = dataclasses.replace(run.internal, largest=np.full(STEPS, largest))
    return whole


def bound_of(run: RecordedRun, size: int = 1) -> ScheduleEpsilon:
    return ScheduleBounds(run).epsilon("zero-out", DELTA, size)


def exact(multipliers: Any, size: int = 1) -> float:
    """Epsilon of full batches with these noise multipliers, relative to the contributions."""
    mu = size * math.sqrt(float(np.sum(np.asarray(multipliers, dtype=float) ** -2.0)))
    return float(gaussian_epsilon(mu, DELTA, 4.0 * mu))


def steps_at(sigma: float) -> Any:
    return np.full(STEPS, sigma)


def has_ends(found: ScheduleEpsilon, lower: float, upper: float) -> bool:
    """Whether the ends are these values up to the width of an interval, and outside of both."""
    assert found.interval is not None
    low, high = found.interval
    return lower * (1.0 - 1e-3) <= low <= lower and upper <= high <= upper * (1.0 + 1e-3)


@pytest.mark.parametrize("layer", [10**2, 10**4, 10**5, 401_408, 10**6, 10**7])
@pytest.mark.parametrize("size", [1, 3])
def test_rounded_norms_in_float32_widen_the_upper_end_alone(layer: int, size: int) -> None:
    excess = float32_excess(layer) if layer > 26_800 else 0.0
    found = bound_of(run_of(layer=layer), size)
    assert has_ends(found, exact(steps_at(SIGMA), size), exact(steps_at(SIGMA / (1.0 + excess)), size))
    assert found.tight
    assert found.charges == (("rounding of norms",) if excess else ())


def test_rounded_norms_in_float64_widen_no_end() -> None:
    found = bound_of(run_of(layer=10**7, dtypes=("float64",)))
    assert has_ends(found, exact(steps_at(SIGMA)), exact(steps_at(SIGMA)))


@pytest.mark.parametrize(("name", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11), ("TF32", 2.0**-11)])
def test_half_precision_shortens_what_data_attain_by_its_roundoff(name: str, unit: float) -> None:
    found = bound_of(run_of({Contributions: ContributionFacts(norm_type=name, sum_type="")}, layer=10**6))
    counted = SIGMA / (1.0 + 5.0 * unit) / (1.0 + float32_excess(10**6))
    assert has_ends(found, exact(steps_at(SIGMA / (1.0 - 2.0 * unit))), exact(steps_at(counted)))


def test_sums_in_half_precision_have_no_lower_end() -> None:
    facts = ContributionFacts(norm_type="bfloat16", sum_type="bfloat16")
    assert not bound_of(run_of({Contributions: facts})).tight


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_a_clip_norm_below_the_norm_of_the_noise_lowers_the_lower_end(ratio: float) -> None:
    limits = ClipLimitFacts(larger=0, smallest=ratio, largest=1.0)
    assert has_ends(bound_of(run_of({ClipLimits: limits})), exact(steps_at(SIGMA / ratio)), exact(steps_at(SIGMA)))


def test_a_custom_loop_attains_its_longest_reported_contribution() -> None:
    run = run_of(source="own-loop", clipping="own", largest=0.3)
    assert has_ends(bound_of(run), exact(steps_at(SIGMA / 0.3)), exact(steps_at(SIGMA)))
    rounded = run_of(source="own-loop", clipping="own", largest=1.0 - 1e-6)
    assert has_ends(bound_of(rounded), exact(steps_at(SIGMA)), exact(steps_at(SIGMA)))


def test_a_custom_loop_attains_in_each_step_the_longest_contribution_of_this_step() -> None:
    """A loop clips to 1 in a step, then to a twentieth; its noise and the clip norm that it declares stay."""
    run = run_of(source="own-loop", clipping="own")
    lengths = np.where(np.arange(STEPS) == 0, 1.0, 0.05)
    vars(run)["internal"] = dataclasses.replace(run.internal, largest=lengths)
    assert has_ends(bound_of(run), exact(SIGMA / lengths), exact(steps_at(SIGMA)))


@pytest.mark.parametrize("short", [1e-7, 9e-5, 0.013, 0.4])
def test_a_custom_loop_attains_no_more_than_it_reports(short: float) -> None:
    found = bound_of(run_of(source="own-loop", clipping="own", largest=1.0 - short)).interval
    assert found.lower <= exact(steps_at(SIGMA / (1.0 - short)))


@pytest.mark.parametrize(
    ("facts", "dampening", "is_revealed"),
    [
        ({}, 0.0, True),
        ({}, 1.0, False),
        ({NoisyGradients: NoisyGradientFacts(compared=9, changed=0, scaled=0, explained=0)}, 0.0, True),
        ({NoisyGradients: NoisyGradientFacts(compared=9, changed=2, scaled=0, explained=0)}, 0.0, False),
        ({NoisyGradients: NoisyGradientFacts(compared=9, changed=0, scaled=9, explained=9)}, 0.0, False),
        ({GradientMap: MapFacts(explained=9, by_all=9, replayed=3, moved=0, public=0, inputs="")}, 0.0, False),
        ({ReportedGradients: GradientFacts(steps=9, summed=9, different=1, hidden=0.0)}, 0.0, False),
    ],
)
def test_sums_that_the_weights_may_hide_have_no_lower_bound(facts: Any, dampening: float, is_revealed: bool) -> None:
    """A sign or a clamp of the noisy gradient hides a part; a dampening of 1 hides all gradients after the first."""
    run = run_of(facts, inner="torch.optim.sgd.SGD", columns={"learning_rate": 0.1})
    run.options.first["dampening"] = OptionChange(START, (dampening,))
    found = schedule_findings(ScheduleBounds(run), DELTA, 1, "zero-out", ())
    assert [finding.bound for finding in found] == ["upper", *(["lower"] if is_revealed else [])]


@pytest.mark.parametrize("largest", [0.0, math.nan])
def test_a_custom_loop_without_reported_contributions_has_no_lower_end(largest: float) -> None:
    assert not bound_of(run_of(source="own-loop", clipping="own", largest=largest)).tight


def test_measured_noise_below_the_declared_one_has_no_lower_end() -> None:
    columns = {"noise_squares": 10**4 * (0.9 * SIGMA) ** 2}
    run = run_of(source="own-loop", clipping="own", layer=10**4, columns=columns)
    found = bound_of(run)
    assert not found.tight
    assert found.charges == ("uncertainty of the measured noise",)
    assert found.interval is not None
    assert exact(steps_at(0.9 * SIGMA)) <= found.interval.upper <= 1.05 * exact(steps_at(0.9 * SIGMA))


@pytest.mark.parametrize("number", [24, 25, 200])
def test_many_noise_multipliers_are_rounded_apart(number: int) -> None:
    multipliers = SIGMA * (1.0 + 0.003 * np.arange(STEPS * 10) % number * math.pi / 7.0)
    columns = dict.fromkeys(("noise_multiplier", "deviation"), multipliers)
    run = run_of()
    wide = {name: np.full(len(multipliers), values[0]) for name, values in run.columns.items()}
    several = dataclasses.replace(run, columns={**wide, **columns, "step": np.arange(len(multipliers))})
    vars(several)["internal"] = run.internal
    low, high = bound_of(several).interval
    assert bound_of(several).tight
    assert low <= exact(multipliers) <= high
    assert high - low <= 0.01 * high


def test_steps_after_the_last_checkpoint_of_a_killed_part_count_above_alone() -> None:
    run = run_of()
    folder = Recording((None, None), run.header, numbers=(1, 2), saved=(6, 14), is_resumed=True)
    folder.starts.extend((0, 10))
    resumed = dataclasses.replace(run, folder=folder)
    vars(resumed)["internal"] = run.internal
    assert has_ends(bound_of(resumed), exact(steps_at(SIGMA)[4:]), exact(steps_at(SIGMA)))


def test_the_lower_bound_of_a_shuffled_loader_counts_what_data_attain(recordings: Any) -> None:
    run = checked(recordings["shuffled"], delta=DELTA).run
    end, records = shuffled_epsilon(run, "zero-out", DELTA)
    half = dataclasses.replace(
        run,
        end=dataclasses.replace(
            run.end, observed={**run.end.observed, "clip_limits": ClipLimitFacts(larger=0, smallest=0.5, largest=1.0)}
        ),
    )
    shorter, same_records = shuffled_epsilon(half, "zero-out", DELTA)
    assert records == same_records
    assert 0.0 < shorter.lower < 0.6 * end.lower


@pytest.mark.parametrize("clip", [1.0, 0.7, 1.0 / 3.0, 3.3])
@pytest.mark.parametrize(
    ("kind", "name"), [(torch.float32, ""), (torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_opacus_attains_the_length_that_the_lower_end_counts(kind: torch.dtype, name: str, clip: float) -> None:
    """One nonzero value 2^j: its norm is exact, and the quotient rounds once."""
    weight = nn.Parameter(torch.zeros(64, dtype=kind))
    optimizer = DPOptimizer(
        torch.optim.SGD([weight], lr=0.1), noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=1
    )
    weight.grad_sample = torch.zeros(1, 64, dtype=kind)
    weight.grad_sample[0, 5] = 2.0**12
    optimizer.clip_and_accumulate()
    length = float(weight.summed_grad.double().norm()) / clip
    run = run_of({Contributions: ContributionFacts(norm_type=name, sum_type="")})
    assert run.attained_lengths[0] * (1.0 - 1e-6) <= length <= 1.0 + run.half_excess + 1e-6


class Wide(Training):
    """A layer of 64,000 values: the rounding of its norm exceeds the tolerance of clipped norms."""

    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 80), nn.Tanh(), nn.Linear(80, 800), nn.Tanh(), nn.Linear(800, 2))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide") / "run"
    Wide(epochs=1).run(folder)
    return folder


def test_a_claim_between_both_ends_is_open_by_rounding(wide: Path) -> None:
    whole = checked(wide, delta=DELTA)
    (upper,) = (finding for finding in whole.audit.findings if finding.bound == "upper")
    truth = PrivacyLoss.of(Mixture.poisson(1, 0.1, 1.1)).compose(10).epsilon(DELTA)
    assert upper.lower <= truth.upper < upper.value
    between = checked(wide, delta=DELTA, epsilon=0.5 * (truth.upper + upper.value))
    assert between.verdict == "open"
    assert "by rounding of norms" in between.reason
    page = " ".join(run_page(between, 200).split())
    assert "(certified), by rounding of norms. Train with a noise multiplier of 1.1" in page
    assert "(now 1.1)" in page
    assert "noise multiplier 1.1, clip norm 1" in page
    assert checked(wide, delta=DELTA, epsilon=0.99 * truth.lower).verdict == "refuted"
    assert checked(wide, delta=DELTA, epsilon=upper.value).verdict == "proved"


def test_advice_is_in_the_units_of_the_script(wide: Path) -> None:
    claimed = 0.9 * checked(wide, delta=DELTA).audit.findings[0].value
    found = checked(wide, delta=DELTA, epsilon=claimed)
    words = found.audit.recording.retraining.split()
    noise = float(words[words.index("of") + 1])

    def upper(sigma: float) -> float:
        return PrivacyLoss.of(Mixture.poisson(1, 0.1, sigma)).compose(10).epsilon(DELTA).upper

    share = 1.0 / (1.0 + float32_excess(64_000))
    assert upper(noise * share) <= claimed < upper(noise * share * 0.999)


def test_declared_phases_do_not_count_the_rounding(wide: Path) -> None:
    document = check.document_of(wide, Question(delta=DELTA, epsilon=50.0))
    sampling = {"scheme": "poisson", "rate": 0.1}
    document["mechanism"] = {
        "kind": "group",
        "steps": 10,
        "noise_multiplier": 1.1,
        "clip_norm": 1.0,
        "sampling": sampling,
    }
    catalog = load_catalog()
    (audit,) = run_spec(from_document(document, catalog), catalog, [], {}).audits
    assert (audit.verdicts[0].verdict, audit.conformance.status) == ("open", "no-deviation-found")
    assert "phases do not count the rounding of norms" in audit.verdicts[0].reason
