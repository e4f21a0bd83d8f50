"""Each probe's judge, on facts that no training made: a fault is found, and its honest twin is not."""

import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args

import numpy as np
import pytest
from scipy.special import ndtr
from support.facts_only import alarms, run_with

from dpspec_recording.folder.events import OptionChange, Unread
from dpspec_recording.folder.merging import Across
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.observers.constants.accountant import Accountant, AccountantFacts
from dpspec_recording.observers.constants.divisor import Divisor
from dpspec_recording.observers.constants.options import Options
from dpspec_recording.observers.gradient_parameters.passes import Passes, PassFacts
from dpspec_recording.observers.model_state.model_state import ModelState, ModelStateFacts
from dpspec_recording.observers.noise.adaptive_count import AdaptiveCount, AdaptiveFacts
from dpspec_recording.observers.noise.noise import Noise
from dpspec_recording.observers.observer import Observer
from dpspec_recording.observers.own_rules import RULES
from dpspec_recording.observers.released_model.other_engines import OtherEngineFacts, OtherEngines
from dpspec_recording.observers.rules import RuleFact, RuleFacts, Rules
from dpspec_recording.observers.sampling.batches import Batches, BatchFacts
from dpspec_recording.observers.sensitivity.clip_limits import ClipLimitFacts, ClipLimits
from dpspec_recording.observers.sensitivity.contributions import ContributionFacts, Contributions
from dpspec_recording.observers.sensitivity.ghost import Ghost, GhostFacts
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.observers.sensitivity.sums import SumFacts, Sums
from dpspec_recording.observers.update_rule.gradient_map import GradientMap
from dpspec_recording.observers.update_rule.loss_scaler import LossScaler, LossScalerFacts
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradientFacts, NoisyGradients
from dpspec_recording.observers.update_rule.optimizer_state import OptimizerState, OptimizerStateFacts
from dpspec_recording.observers.update_rule.parameters import ParameterFacts, Parameters
from dpspec_recording.observers.update_rule.public_steps import PublicFacts, PublicSteps
from dpspec_recording.observers.update_rule.reported_gradients import GradientFacts, ReportedGradients
from dpspec_recording.observers.update_rule.updates import UpdateFacts, Updates
from dpspec_recording.outcomes.issue import Issue, undeclared
from dpspec_recording.step_replay.facts import (
    BATCH_BEFORE,
    PROCESSES,
    TABLE,
    MapFacts,
    ReplayFacts,
    SizeFacts,
)
from dpspec_recording.watching.noise_statistics import (
    EDGES,
    INTERVALS,
    AlongSums,
    Extremes,
    NoiseFacts,
    NoiseStatistics,
    Quietest,
    Repeats,
)

#: Statistics of 100 steps of Gaussian noise of 1,000 coordinates.
STATISTICS = NoiseStatistics(
    quietest=Quietest(squares=60.0, steps=100, coordinates=1000, rounding=1e-6),
    counts=tuple(round(100_000 * share) for share in np.diff(ndtr([-np.inf, *EDGES, np.inf]))),
    worst_counts=tuple(round(1000 * share) for share in np.diff(ndtr([-np.inf, *EDGES, np.inf]))),
    counted=100,
    edge_error=1e-6,
    extremes=Extremes(numbers=100_000, largest=4.4, rounding=1e-6),
    repeats=Repeats(small=0, expected=0.1, gaps=1000, tried=1),
    pooled=Repeats(small=0, expected=0.1, gaps=1000, tried=9),
    along_sums=AlongSums(steps=100, squares=100.0, largest=6.0),
    spacing=0.0,
)


def noisy(**changes: Any) -> dict[str, Any]:
    """Return a change of the facts of noise by one of its statistics."""
    return {"processes": (replace(STATISTICS, **changes),)}


#: Replays of a mean at another batch size: the gradients change as 1 over it.
SIZES = SizeFacts(steps=3, lowest=-1.0, highest=-1.0, removed=0.9)

#: No other optimizer stepped.
ALONE = RuleFact(facts={"optimizers": [], "readers": [], "before_steps": 0})

#: The facts of an honest run of 100 steps.
HONEST: dict[type[Observer[Any]], Any] = {
    Noise: NoiseFacts(processes=(STATISTICS,)),
    Parameters: ParameterFacts(outside=0.0, loaded=0, returned=0),
    ModelState: ModelStateFacts(buffers=(), state=(), attributes=(), rounded=("base.weight",), coarse=(), unread=()),
    NoisyGradients: NoisyGradientFacts(compared=100, changed=0, scaled=0, explained=0),
    ReportedGradients: GradientFacts(steps=100, summed=100, different=0, hidden=1e-5),
    Contributions: ContributionFacts(norm_type="", sum_type=""),
    Sums: SumFacts(compared=100, edited=0),
    ClipLimits: ClipLimitFacts(larger=0, smallest=1.0, largest=1.0),
    Ghost: GhostFacts(batches=100, unobserved=0, changed=0, unverified=()),
    AdaptiveCount: AdaptiveFacts(counts=100, squares=100.0, largest=6.0, silent=0, unexplained=0, least_std=3.0),
    Replays: ReplayFacts(
        tried=9,
        replayed=8,
        replacements=30,
        moved=1.99,
        longest=0.99,
        failure="",
        varying=0,
        testing=0,
        sizes=SIZES,
        replaced=("float32 (B, 20)",),
        unreplayed=(),
    ),
    GradientMap: MapFacts(explained=0, by_all=0, replayed=0, moved=0, public=0, inputs=""),
    PublicSteps: PublicFacts(is_declared=True, is_compared=True, steps=0),
    Passes: PassFacts(passes=100, moved=0, steps=100, unseen=0, compared=100),
    OptimizerState: OptimizerStateFacts(restated=0, resumed=False),
    LossScaler: LossScalerFacts(used=False),
    Updates: UpdateFacts(
        steps=100, recomputed=100, different=0, failed=0, optimizer="", replayed=0, moved=0, step_hooks=()
    ),
    OtherEngines: OtherEngineFacts(steps=0),
    Rules: RuleFacts(by_rule=({**{rule.name: RuleFact(facts={}) for rule in RULES}, "second-optimizer": ALONE},)),
    Batches: BatchFacts(unused=1, passed_over=0),
    Accountant: AccountantFacts(history=((1.0, 0.1, 100),)),
}

#: The probes with a fact beside the steps.
STATING = [probe for probe in OBSERVERS if probe.kind is not None]

#: Columns of the steps of honest runs.
STEPS: dict[type[Observer[Any]], dict[str, Any]] = {
    Accountant: {"told_steps": np.arange(1.0, 101.0), "told_noise": 1.0, "told_rate": 0.1},
    Options: {"changes": [{"mode": OptionChange("StepLR", ("unread Rate",))}]},  # a word, which the recorder has read
}

#: Of each probe faulty columns of the steps or changes of options, and the alarms.
FAULTY_STEPS: list[tuple[type[Observer[Any]], dict[str, Any], str]] = [
    (Batches, {"columns": {"batches": 2.0}}, "several-batches"),
    (Batches, {"columns": {"drawn": np.nan}}, "unobserved-batch"),
    (Batches, {"scheme": "shuffled"}, "assumed-poisson"),
    (Accountant, {"columns": {**STEPS[Accountant], "told_steps": 1.0}}, "accountant-steps"),
    # one that counted nothing has no other noise and no other rate
    (Accountant, {"columns": dict.fromkeys(STEPS[Accountant], np.nan)}, "accountant-steps"),
    (Accountant, {"columns": {**STEPS[Accountant], "told_noise": 1.1}}, "accountant-noise"),
    (Accountant, {"columns": {**STEPS[Accountant], "told_rate": 0.2}}, "accountant-rate"),
    (Divisor, {"columns": {"measured_divisor": 12.0}}, "other-divisor"),
    (
        Divisor,
        {"columns": dict.fromkeys(("divisor", "measured_divisor"), np.linspace(10.0, 12.0, 100))},
        "data-independent-hyperparameters",
    ),
    (Options, {"changes": [{"lr": OptionChange("", (0.2,))}]}, "update-rule"),
    (Options, {"changes": [{"lr": OptionChange("StepLR", (Unread("Rate"),))}]}, "update-rule"),
    (Options, {"changes": [{"noise_multiplier": OptionChange("", (0.2,))}]}, "data-independent-hyperparameters"),
]

#: Of each probe faulty facts, as changes of the honest ones, and the alarms.
FAULTY: list[tuple[type[Observer[Any]], dict[str, Any], str]] = [
    (Noise, noisy(repeats=Repeats(small=50, expected=0.1, gaps=1000, tried=1)), "noise-independence"),
    (Noise, noisy(pooled=Repeats(small=50, expected=0.1, gaps=1000, tried=9)), "noise-independence"),
    (Noise, noisy(along_sums=AlongSums(steps=100, squares=900.0, largest=60.0)), "noise-independence"),
    (Noise, noisy(extremes=Extremes(numbers=100_000, largest=3.0, rounding=1e-6)), "noise-shape noise-law"),
    (Noise, noisy(quietest=Quietest(squares=1.0, steps=100, coordinates=1000, rounding=1e-6)), "noise-size"),
    (Noise, noisy(counts=(100_000, *[0] * (INTERVALS - 1))), "noise-shape"),
    (Noise, noisy(spacing=0.01), "noise-law"),
    (Parameters, {"outside": 1.0}, "moved-parameters"),
    (PublicSteps, {"steps": 3}, "unverified-public-steps"),
    (Parameters, {"outside": 1.0, "loaded": 1}, "loaded-weights"),
    (Parameters, {"outside": 1.0, "returned": 1}, "returned-weights"),
    (ModelState, {"buffers": ("norm.mean",)}, "changed-state"),
    (ModelState, {"state": ("head",)}, "changed-state"),
    (ModelState, {"attributes": ("norm.seen",)}, "model-state"),
    (ModelState, {"coarse": ("base.weight",)}, "model-state"),
    (NoisyGradients, {"changed": 1}, "other-gradients"),
    (Contributions, {"sum_type": "bfloat16"}, "precision"),
    (Sums, {"edited": 1}, "edited-sum"),
    (ClipLimits, {"larger": 1, "largest": 1.5}, "clip-limits"),
    (Ghost, {"changed": 1}, "added-gradients"),
    (Ghost, {"unobserved": 1}, "per-record-clipping"),
    (Ghost, {"unverified": ("bag (EmbeddingBag)",)}, "per-record-clipping"),
    (AdaptiveCount, {"squares": 400.0}, "count-noise"),
    (AdaptiveCount, {"silent": 1}, "silent-counts"),
    (AdaptiveCount, {"unexplained": 2}, "next-clip-norm"),
    (ReportedGradients, {"different": 1}, "noise-not-in-gradients loop-reports"),
    (ReportedGradients, {"summed": 90}, "loop-reports"),
    (ReportedGradients, {"steps": 90, "summed": 90}, "loop-reports"),
    (ReportedGradients, {"hidden": 9.0}, "loop-reports"),
    (Replays, {"moved": 2.5}, "sum-moved"),
    (Replays, {"outputs": 0.1}, "others-moved"),
    (Replays, {"gradients": 0.1}, "others-moved"),
    (Replays, {"interaction": 0.1}, "others-moved"),
    (Replays, {"earlier_sum": 0.1}, "others-moved"),
    *((Replays, {"origins": {origin: 1}}, "unmixed-batches") for origin in (BATCH_BEFORE, TABLE, PROCESSES)),
    (Replays, {"longest": 1.07}, "unmixed-batches"),
    (Replays, {"unreplayed": ("why",)}, "not-replayed"),
    (Replays, {"replayed": 0, "unreplayed": ("why",)}, "not-replayed"),
    (Replays, {"sizes": replace(SIZES, removed=3.0)}, "sum-moved-without-records"),
    (Replays, {"sizes": replace(SIZES, highest=0.0)}, "loss-reduction"),
    (GradientMap, {"explained": 100, "by_all": 100, "replayed": 2, "moved": 1}, "gradient-map"),
    (GradientMap, {"explained": 60, "by_all": 60, "replayed": 2}, "gradient-map"),
    (Passes, {"moved": 1}, "other-parameters"),
    (Passes, {"unseen": 2}, "gradient-parameters"),
    (OptimizerState, {"restated": 4}, "update-rule"),
    (OptimizerState, {"resumed": True}, "released-model"),
    (LossScaler, {"used": True}, "update-rule"),
    (Updates, {"different": 1}, "other-updates"),
    (Updates, {"failed": 1}, "update-rule"),
    (OtherEngines, {"steps": 7}, "released-model"),
    (Batches, {"unused": 60, "passed_over": 60}, "unused-batches"),
    (Rules, {"by_rule": ({rule.name: RuleFact(facts={}) for rule in RULES[1:]},)}, "one-record"),
    (Rules, {"by_rule": ({rule.name: RuleFact(error="OSError: no") for rule in RULES},)}, "one-record"),
]

#: What the header says of the training, if the probe is about one kind.
HEADERS: dict[type[Observer[Any]], dict[str, Any]] = {
    Ghost: {"clipping": "ghost"},
    AdaptiveCount: {"clipping": "adaptive"},
    ReportedGradients: {"source": "own-loop", "layers": (("weight", 100),)},
    Replays: {"reduction": "mean"},
    Accountant: {"accountant": "rdp"},
    Batches: {"accountant": "rdp"},
}


def kind_of(probe: type[Observer[Any]]) -> Any:
    """Return the dataclass of a probe's fact."""
    kinds = [kind for kind in get_args(probe.kind) or (probe.kind,) if kind is not NoneType]
    (kind,) = kinds
    return kind


def parts_of(kind: Any) -> list[Any]:
    """Return a dataclass, and those of its fields."""
    return [kind, *(each.type for each in fields(kind) if is_dataclass(each.type))]


def test_every_probe_has_facts_that_are_honest_and_facts_that_are_not() -> None:
    assert {*HONEST} == {*STATING}
    assert {probe for probe, _, _ in (*FAULTY, *FAULTY_STEPS)} == {*OBSERVERS}
    assert len({probe.name for probe in OBSERVERS}) == len(OBSERVERS)


@pytest.mark.parametrize("probe", STATING)
def test_a_probe_says_how_its_facts_are_joined(probe: type[Observer[Any]]) -> None:
    if probe.merge.__func__ is Observer.merge.__func__:  # type: ignore[attr-defined]
        for kind in parts_of(kind_of(probe)):
            assert all({*each.metadata} == {*get_args(Across)} for each in fields(kind))
    honest = HONEST[probe]
    assert isinstance(probe.merge([honest, honest], "ranks"), type(honest))
    assert isinstance(probe.merge([honest, honest], "parts"), type(honest))


@pytest.mark.parametrize("probe", OBSERVERS)
def test_an_honest_fact_is_no_alarm(probe: type[Observer[Any]]) -> None:
    run = run_with(HONEST, columns=STEPS.get(probe), **HEADERS.get(probe, {}))
    assert alarms(probe, HONEST.get(probe), run) == set()


@pytest.mark.parametrize(("probe", "change", "alarm"), FAULTY_STEPS)
def test_faulty_steps_are_the_alarm_of_their_fault(
    probe: type[Observer[Any]], change: dict[str, Any], alarm: str
) -> None:
    run = run_with(HONEST, **{**HEADERS.get(probe, {}), **change})
    assert alarms(probe, HONEST.get(probe), run) == {*alarm.split()}


def test_an_option_that_the_user_declares_public_is_no_doubt() -> None:
    run = run_with(HONEST, changes=[{"lr": OptionChange("", (0.2,))}, {"betas[0]": OptionChange("", (0.8,))}])
    doubts = [outcome for outcome in Options.judge(None, run) if isinstance(outcome, Issue)]
    assert [doubt.option for doubt in doubts] == ["learning_rate", "betas"]
    assert [doubt.option for doubt in undeclared(doubts, ("learning_rate",)) if isinstance(doubt, Issue)] == ["betas"]


@pytest.mark.parametrize(("probe", "change", "alarm"), FAULTY)
def test_a_faulty_fact_is_the_alarm_of_its_fault(
    probe: type[Observer[Any]], change: dict[str, Any], alarm: str
) -> None:
    facts = {**HONEST, probe: replace(HONEST[probe], **change)}
    assert alarms(probe, facts[probe], run_with(facts, **HEADERS.get(probe, {}))) == {*alarm.split()}


@pytest.mark.parametrize("faulty_first", [True, False], ids=["faulty first", "faulty second"])
@pytest.mark.parametrize("across", ["ranks", "parts"])
@pytest.mark.parametrize(("probe", "change", "alarm"), FAULTY)
def test_joining_with_an_honest_fact_hides_no_fault(
    probe: type[Observer[Any]], change: dict[str, Any], alarm: str, across: Across, faulty_first: bool
) -> None:
    if probe is ReportedGradients and (across == "ranks" or "steps" in change):
        return  # custom loops have one rank; further parts add steps, and the run of this test has those of one
    if probe is OptimizerState and "resumed" in change and not faulty_first:
        return  # later parts resume the first one
    pair = [replace(HONEST[probe], **change), HONEST[probe]]
    together = probe.merge(pair if faulty_first else pair[::-1], across)
    run = run_with({**HONEST, probe: together}, **HEADERS.get(probe, {}))
    assert {*alarm.split()} <= alarms(probe, together, run)


@pytest.mark.parametrize("probe", OBSERVERS)
def test_a_run_without_an_end_is_judged(probe: type[Observer[Any]]) -> None:
    list(probe.judge(None, run_with({}, ended=False)))


def test_judges_need_no_torch() -> None:
    code = "import sys, dpspec_recording.observers.all; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
