"""The norm to which gradients are clipped is compared with the norm of their noise at each step, whatever they are."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opacus.schedulers import ExponentialGradClip, LambdaGradClip, LambdaNoise
from support.opacus_training import Training, recorded, scheduled

from dpspec.accounting import PrivacyLoss
from dpspec_recording.judge.bounds import ScheduleBounds
from dpspec_recording.observers.sensitivity.clip_limits import LIMITS, ClipLimits, clip_limit

Script = Callable[[Training], None]

#: No gradient of these trainings is as long, so that no contribution shows another limit.
LONG = 1e3


def test_each_clipping_reads_its_own_attributes() -> None:
    optimizer = SimpleNamespace(max_grad_norm=7.0, max_grad_norms=[3.0, -4.0])
    model = SimpleNamespace(max_grad_norm=-2.0)
    limits = {clipping: clip_limit(optimizer, clipping, model) for clipping in ("flat", "adaptive", "per-layer")}
    assert limits == {"flat": 7.0, "adaptive": 7.0, "per-layer": 5.0}
    assert clip_limit(optimizer, "ghost", model) == 2.0


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([], None),
        ([([1.0], 1.0), ([1.0], 2.0)], [0, 0.5, 1.0]),
        ([([2.0], 2.0), ([1.0, 3.0, 1.0], 2.0)], [1, 1.0, 1.5]),  # the largest limit of all physical batches
        ([([], 1.0)], None),
        ([([1.0], 1.0 / (1.0 + 5e-6))], [0, 1.0 + 5e-6, 1.0 + 5e-6]),  # the rounding of a root in float32
        ([([1.0 + 2e-5], 1.0)], [1, 1.0 + 2e-5, 1.0 + 2e-5]),
        ([([math.nan, 1.0], 1.0)], [1, 1e9, 1e9]),
        ([([math.inf], 1.0)], [1, 1e9, 1e9]),
        ([([1.0], 0.0)], [1, 1e9, 1e9]),
    ],
)
def test_the_largest_limit_of_a_step_counts(steps: Any, found: Any) -> None:
    limits = ClipLimits()
    for clipped, clip_norm in steps:
        for limit in clipped:
            limits.clip(limit)
        limits.add_noise(clip_norm)
    facts = limits.facts()
    numbers = None if facts is None else [*dataclasses.astuple(facts)]
    assert numbers == (found if found is None else pytest.approx(found, rel=1e-12))


def changed(change: Callable[[Training], None], at: int = 3) -> Script:
    """Change the training once, after step ``at``."""

    def script(training: Training) -> None:
        steps = 0

        def each(training: Training) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                change(training)

        training.train(each=each)

    return script


def norms_of_layers(*norms: float) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        training.private.max_grad_norms = [norm * LONG for norm in norms]

    return change


def one_layer(training: Training) -> None:
    training.private.max_grad_norms[2] = 3.0 * LONG


def of_model(norm: float) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        training.model.max_grad_norm = norm * LONG

    return change


def of_optimizer(norm: float) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        training.private.max_grad_norm = norm * LONG

    return change


def lowered_after_a_physical_batch(training: Training) -> None:
    def each(training: Training) -> None:
        training.private.max_grad_norm = LONG * (0.5 if training.private._is_last_step_skipped else 1.0)

    training.train(each=each)


LAYERS, GHOST = {"clipping": "per_layer"}, {"clipping": "ghost"}


@pytest.mark.family
@pytest.mark.parametrize(
    ("made", "script", "ratio"),
    [
        ({**LAYERS, "epochs": 1}, changed(norms_of_layers(2.0, 2.0, 2.0, 2.0)), 2.0),
        (LAYERS, changed(norms_of_layers(1.0, 1.0, 1.0, 3.0)), math.sqrt(3.0)),
        (LAYERS, changed(one_layer, at=15), math.sqrt(3.0)),
        (LAYERS, changed(of_optimizer(1.0)), 2.0),
        (LAYERS, scheduled(lambda optimizer: ExponentialGradClip(optimizer, gamma=0.98)), 0.98**-19),
        (GHOST, scheduled(lambda optimizer: ExponentialGradClip(optimizer, gamma=0.98)), 0.98**-19),
        (GHOST, changed(of_model(1.25)), 1.25),
        (GHOST, changed(of_optimizer(0.5), at=19), 2.0),
        ({"physical": 8}, lowered_after_a_physical_batch, 2.0),
        ({"physical": 8, "clipping": "adaptive"}, lowered_after_a_physical_batch, None),
    ],
)
def test_gradients_clipped_to_a_larger_norm_than_the_noise_deviate(made, script, ratio, tmp_path) -> None:
    run = recorded(tmp_path / "run", script, clip=LONG, **made)
    assert run.status == ("open", "deviates")
    (check,) = [check for check in run.checks if check.assumption == "clipping"]
    assert check.test.startswith(LIMITS.title)
    assert check.measured > 1.2 if ratio is None else check.measured == pytest.approx(ratio, abs=1e-3)
    assert any("times the norm by which their noise is scaled" in advice for advice in run.audit.recording.advice)


def together(factor: float) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        training.private.max_grad_norms = [factor * norm for norm in training.private.max_grad_norms]
        training.private.max_grad_norm *= factor

    return change


@pytest.mark.ci
@pytest.mark.parametrize(
    ("made", "script"),
    [
        (LAYERS, changed(norms_of_layers(0.5, 0.5, 1.0, 1.0))),  # more noise than the thresholds need
        (LAYERS, changed(norms_of_layers(1.9, 0.1, 0.1, 0.1))),
        (LAYERS, changed(together(3.0))),
        (LAYERS, scheduled(lambda optimizer: ExponentialGradClip(optimizer, gamma=1.02))),
        (LAYERS, scheduled(lambda optimizer: LambdaNoise(optimizer, noise_lambda=lambda step: 1.0 + 0.1 * step))),
        ({}, scheduled(lambda optimizer: ExponentialGradClip(optimizer, gamma=0.9))),
        (GHOST, scheduled(lambda optimizer: LambdaGradClip(optimizer, scheduler_function=lambda step: 1.0 + step))),
        (GHOST, changed(of_model(0.5))),
        ({"clipping": "adaptive", "physical": 8}, Training.train),
    ],
)
def test_no_larger_norm_than_the_noise_is_no_deviation(made: dict[str, Any], script: Script, tmp_path: Path) -> None:
    asked = {"public": ("clip_norm", "noise_multiplier")}
    run = recorded(tmp_path / "run", script, asked=asked, **{"clip": LONG, **made})
    assert (run.verdict, run.fine) == ("proved", True)


@pytest.mark.ci
def test_noise_for_longer_gradients_lowers_the_lower_end(tmp_path: Path) -> None:
    """Contributions are at most half as long as those to which the noise belongs."""
    run = recorded(tmp_path / "run", changed(norms_of_layers(0.5, 0.5, 0.5, 0.5)), clip=LONG, **LAYERS)
    bound = ScheduleBounds(run.run).epsilon("zero-out", 1e-5, 1)
    (phase,) = run.phases
    upper, lower = (
        PrivacyLoss.of_steps([(factor * phase.noise_multiplier, phase.rate, phase.steps)]).epsilon(1e-5)
        for factor in (1.0, 2.0)
    )
    assert bound.tight
    assert bound.interval is not None
    assert (bound.interval.lower, bound.interval.upper) == (pytest.approx(lower.lower), pytest.approx(upper.upper))
