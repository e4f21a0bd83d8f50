"""Weights that a script loads in the block, and engines that it makes there, are named."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun
from support.opacus_training import Training, recorded
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpspec_recording.observers.gradient_parameters.passes import OTHER_PARAMETERS
from dpspec_recording.observers.update_rule.parameters import LOADED, MOVED, RETURNED

pytestmark = pytest.mark.filterwarnings("ignore")

Script = Callable[[Training], None]
Weights = dict[str, torch.Tensor]


def weights_of(training: Training) -> Weights:
    return copy.deepcopy(training.model.state_dict())


def load_others(training: Training, *, wrapped: bool = True) -> None:
    model = training.model if wrapped else training.model._module
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


def after_step(step: int, change: Script) -> Script:
    def script(training: Training) -> None:
        steps = 0

        def each(training: Training) -> None:
            nonlocal steps
            steps += 1
            if steps == step:
                change(training)

        training.train(each=each)

    return script


def first(training: Training) -> None:
    load_others(training)
    training.train()


def back_to_earlier_weights(training: Training) -> None:
    """Back to the best weights so far."""
    earlier: list[Weights] = []

    def each(training: Training) -> None:
        earlier.append(weights_of(training))
        if len(earlier) == 9:
            training.model.load_state_dict(earlier[4])

    training.train(each=each)


def for_an_evaluation(training: Training) -> None:
    own = weights_of(training)
    load_others(training)
    training.model.load_state_dict(own)


def advice_of(run: CheckedRun) -> str:
    assert run.audit.recording is not None
    return " ".join(run.audit.recording.advice)


@pytest.mark.family
@pytest.mark.parametrize(
    "script",
    [
        after_step(3, load_others),
        after_step(3, lambda training: load_others(training, wrapped=False)),
        after_step(20, load_others),
        back_to_earlier_weights,
    ],
)
def test_loaded_weights_deviate_by_their_name(script: Script, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", script)
    assert run.status == ("open", "deviates")
    assert LOADED.title in run.rejected
    assert MOVED.title not in run.rejected
    assert "resume=True" in advice_of(run)
    assert not any(word in advice_of(run) for word in ("clamping", "SAM"))


def copied_back(step: int, to: int, how: str) -> Script:
    """Return a script that copies the weights of a step into the parameters after another one."""

    def script(training: Training) -> None:
        earlier: list[list[torch.Tensor]] = []
        parameters = training.private.params

        def each(_: Training) -> None:
            earlier.append([p.detach().clone() for p in parameters])
            if len(earlier) != step:
                return
            if how == "vector":
                vector_to_parameters(parameters_to_vector(earlier[to - 1]), parameters)
            for p, value in zip(parameters, earlier[to - 1], strict=True):
                if how == "data":
                    p.data = value.clone()
                elif how == "copy":
                    p.data.copy_(value)

        training.train(each=each)

    return script


@pytest.mark.ci
@pytest.mark.parametrize(
    "script",
    [copied_back(9, 5, "vector"), copied_back(9, 1, "data"), copied_back(9, 8, "copy"), copied_back(20, 3, "copy")],
)
def test_copies_of_earlier_weights_deviate_by_their_name(script: Script, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", script)
    assert run.status == ("open", "deviates")
    assert RETURNED.title in run.rejected
    assert not run.rejected & {MOVED.title, LOADED.title}
    assert "weights that it had before" in advice_of(run)
    assert "clamping" not in advice_of(run)


@pytest.mark.ci
def test_the_weights_of_the_last_step_are_no_earlier_ones(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", copied_back(9, 9, "vector")).fine


@torch.no_grad()
def clamp(training: Training) -> None:
    for p in training.private.params:
        p.clamp_(-0.01, 0.01)


@pytest.mark.ci
def test_other_changes_keep_their_name(tmp_path: Path) -> None:
    def script(training: Training) -> None:
        after_step(3, load_others)(training)
        after_step(5, clamp)(training)

    run = recorded(tmp_path / "run", script)
    assert {LOADED.title, MOVED.title, OTHER_PARAMETERS.title} <= run.rejected
    assert "clamping" in advice_of(run)
    assert LOADED.title not in recorded(tmp_path / "other", after_step(5, clamp)).rejected


@pytest.mark.family
@pytest.mark.parametrize("script", [first, after_step(3, for_an_evaluation), after_step(20, for_an_evaluation)])
def test_initial_weights_and_weights_that_are_taken_back_are_proved(script: Script, tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", script).fine


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_steps_of_another_engine_in_the_block_leave_the_claim_open(clipping: str, tmp_path: Path) -> None:
    def script(training: Training) -> None:
        training.train()
        Training(seed=5, clipping=clipping).build().train()

    run = recorded(tmp_path / "run", script)
    assert run.status == ("open", "no-deviation-found")
    assert "other private optimizers made 20 steps in the block" in run.assumption("released-model").text
