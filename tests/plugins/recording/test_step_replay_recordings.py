"""Replays in a recording: for each clipping of Opacus they see the whole step, and nothing of the recorder."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import checked
from support.opacus_training import Training
from torch import nn

from dpspec.contract.findings import Check
from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.observers.sensitivity.replays import OTHERS_MOVED, SUM_MOVED
from dpspec_recording.step_replay.calls import Pauses
from dpspec_recording.step_replay.timeline import PassTimeline
from dpspec_recording.step_replay.trace import StepTrace
from dpspec_recording.step_replay.watch import ReplayedSteps


class Centered(Training):
    """The model subtracts the mean of the batch."""

    def module(self) -> nn.Module:
        class Center(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x - x.mean(0)

        return nn.Sequential(nn.Linear(6, 16), Center(), nn.Tanh(), nn.Linear(16, 2))


def replays(folder: Path, kind: type[Training] = Training, **given: Any) -> dict[str, Check]:
    kind(**{"epochs": 1, **given}).run(folder)
    checks = checked(folder, epsilon=100.0).tests
    return {check.test: check for check in checks if check.test in (SUM_MOVED.title, OTHERS_MOVED.title)}


@pytest.mark.ci
@pytest.mark.parametrize("physical", [None, 12])
@pytest.mark.parametrize("clipping", ["flat", "per_layer", "adaptive", "ghost"])
def test_a_replaced_record_moves_the_sum_of_each_clipping(clipping: str, physical: int | None, tmp_path: Path) -> None:
    checks = replays(tmp_path / "run", clipping=clipping, physical=physical)
    moved, others = checks[SUM_MOVED.title], checks[OTHERS_MOVED.title]
    assert 0.5 < (moved.measured or 0.0) <= 2.0 + 1e-6
    assert (moved.p_value, others.p_value, others.measured) == (1.0, 1.0, 0.0)


def test_labels_of_later_physical_batches_stay() -> None:
    """They may have the length of the first batch, as may a loaded record; replaced together they move the sum."""
    timeline = PassTimeline(StepTrace(), Pauses())
    x, first, second = torch.randn(4, 2, requires_grad=True), torch.tensor([0, 1, 1, 0]), torch.tensor([1, 1, 0, 0])
    timeline.trace.start()
    timeline.begin_pass([x])
    timeline.note_outputs(x)
    nn.functional.cross_entropy(x, first).backward()
    nn.functional.cross_entropy(x, second)
    timeline.trace.stop()
    assert [label is first for label in timeline.labels(())] == [True]


@pytest.mark.family
@pytest.mark.parametrize("physical", [None, 12])
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_records_that_change_others_are_found_for_each_clipping(clipping, physical, tmp_path):
    checks = replays(tmp_path / "run", Centered, clipping=clipping, physical=physical)
    assert checks[OTHERS_MOVED.title].p_value == 0.0


class Tokens(Training):
    """Records of tokens, padded with 0."""

    centered = False

    def build(self) -> Training:
        super().build()
        dataset: Any = self.loader.dataset
        tokens = torch.randint(1, 40, (len(dataset), 9))
        tokens[:, 7:] *= torch.randint(0, 2, (len(dataset), 1))
        dataset.tensors = (tokens, dataset.tensors[1])
        return self

    def module(self) -> nn.Module:
        class Mean(nn.Module):
            def forward(self, embedded: torch.Tensor) -> torch.Tensor:
                return embedded.mean(1)

        center = [self.center()] if self.centered else []
        return nn.Sequential(nn.Embedding(40, 8), Mean(), *center, nn.Linear(8, 2))

    def center(self) -> nn.Module:
        return Centered().module()[1]


class CenteredTokens(Tokens):
    """The model subtracts the mean of the batch."""

    centered = True


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_records_of_tokens_are_replaced_by_as_many_different_ones(clipping: str, tmp_path: Path) -> None:
    checks = replays(tmp_path / "honest", Tokens, clipping=clipping)
    assert 0.5 < (checks[SUM_MOVED.title].measured or 0.0) <= 2.0 + 1e-6
    assert checks[OTHERS_MOVED.title].measured == 0.0
    checks = replays(tmp_path / "centered", CenteredTokens, clipping=clipping)
    assert checks[OTHERS_MOVED.title].p_value == 0.0


class Reading(Training):
    """Each step reads its loss and accuracy before the backward pass, as logs do."""

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        outputs = self.model(x)
        loss = self.criterion(outputs, y)
        self.read = loss.item(), (outputs.detach().argmax(1).numpy() == y.numpy()).mean()
        loss.backward()
        self.private.step()


class ReadingUnclipped(Reading):
    """A clipping that is replaced by none, although the optimizer reports its clip norm."""

    def build(self) -> Training:
        super().build()
        clip = self.private.clip_and_accumulate

        def unclipped() -> None:
            limit, self.private.max_grad_norm = self.private.max_grad_norm, 1e6
            clip()
            self.private.max_grad_norm = limit

        self.private.clip_and_accumulate = unclipped
        return self


class Sequences(Training):
    """Packed sequences of different lengths, which ``DPLSTM`` orders by length and the last layer does not."""

    is_sorted = False

    def build(self) -> Training:
        super().build()
        dataset: Any = self.loader.dataset
        lengths = torch.randint(2, 7, (len(dataset),))
        dataset.tensors = (torch.randn(len(dataset), 6, 4), lengths, dataset.tensors[1])
        return self

    def module(self) -> nn.Module:
        from opacus.layers import DPLSTM

        is_sorted = self.is_sorted

        class LastState(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm, self.head = DPLSTM(4, 8, batch_first=True), nn.Linear(8, 2)

            def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
                packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=is_sorted)
                return self.head(self.lstm(packed)[1][0][-1])

        return LastState()

    def step(self, *batch: Any) -> None:
        self.private.zero_grad()
        order = batch[1].argsort(descending=True) if self.is_sorted else slice(None)
        x, lengths, labels = (part[order] for part in batch)
        self.criterion(self.model(x, lengths), labels).backward()
        self.private.step()


class TokenSequences(Sequences):
    """Packed sequences of tokens."""

    def build(self) -> Training:
        super().build()
        dataset: Any = self.loader.dataset
        x, lengths, labels = dataset.tensors
        tokens = torch.randint(1, 30, x.shape[:2]) * (torch.arange(x.shape[1]) < lengths[:, None])
        dataset.tensors = (tokens, lengths, labels)
        return self

    def module(self) -> nn.Module:
        inner = super().module()

        class Embedded(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.inner = nn.Embedding(30, 4), inner

            def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
                return self.inner(self.embedding(tokens), lengths)

        return Embedded()


class SortedInside(Sequences):
    """The model sorts its records, and returns its outputs in the order of the batch."""

    def module(self) -> nn.Module:
        class Sorting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

            def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
                order = lengths.argsort(descending=True)
                is_record = torch.arange(x.shape[1]) < lengths[order][:, None]
                hidden = torch.tanh(self.first(x[order])) * is_record[..., None]
                return self.head(hidden.mean(1))[order.argsort()]

        return Sorting()


class SortedSequences(Sequences):
    """The longest sequence is the first, so that all layers have the same order."""

    is_sorted = True


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_layers_with_records_in_different_orders_are_found(tmp_path: Path) -> None:
    for kind in (Sequences, TokenSequences):
        assert replays(tmp_path / kind.__name__, kind, epochs=1)[OTHERS_MOVED.title].p_value == 0.0
    assert not replays(tmp_path / "sorted", SortedSequences, epochs=1)  # the lengths decide shapes: abstains
    checks = replays(tmp_path / "inside", SortedInside, epochs=1)
    assert [checks[name].p_value for name in (SUM_MOVED.title, OTHERS_MOVED.title)] == [1.0, 1.0]


class TimeFirst(Training):
    """Inputs and outputs are (time, batch, features), with about as many times as records."""

    batch: int = 20

    def build(self) -> Training:
        super().build()
        dataset: Any = self.loader.dataset
        dataset.tensors = (torch.randn(len(dataset), 20, 4), dataset.tensors[1])
        return self

    def make_private(self, *parts: Any, **given: Any) -> None:
        super().make_private(*parts, **given, batch_first=False)

    def module(self) -> nn.Module:
        from opacus.layers import DPLSTM

        class LastState(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm, self.head = DPLSTM(4, 8, batch_first=False), nn.Linear(8, 2)

            def forward(self, x: torch.Tensor) -> Any:
                return self.head(self.lstm(x)[0])

        return LastState()

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        self.criterion(self.model(x.transpose(0, 1)).mean(0), y).backward()
        self.private.step()


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
def test_batches_in_the_second_dimension_are_replayed_from_the_loader(tmp_path: Path) -> None:
    checks = replays(tmp_path / "run", TimeFirst, poisson=False, epochs=1)
    assert [checks[name].p_value for name in (SUM_MOVED.title, OTHERS_MOVED.title)] == [1.0, 1.0]


@pytest.mark.ci
def test_a_loss_that_is_logged_before_the_step_does_not_hide_other_clipping(tmp_path: Path) -> None:
    checks = replays(tmp_path / "honest", Reading)
    assert [checks[name].p_value for name in (SUM_MOVED.title, OTHERS_MOVED.title)] == [1.0, 1.0]
    assert replays(tmp_path / "unclipped", ReadingUnclipped, clip=0.01)[SUM_MOVED.title].p_value == 0.0


class ReadingCentered(Reading, Centered):
    """Logged losses, and a model that mixes records."""


@pytest.mark.ci
def test_a_loss_that_is_logged_before_the_step_does_not_hide_mixed_records(tmp_path: Path) -> None:
    assert replays(tmp_path / "run", ReadingCentered)[OTHERS_MOVED.title].p_value == 0.0


class ScaledByItsLoss(Training):
    """Each loss is divided by the mean loss of its batch, a number of Python."""

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        loss = self.criterion(self.model(x), y)
        (loss / loss.item()).backward()
        self.private.step()


@pytest.mark.ci
def test_a_number_of_python_that_scales_the_loss_is_followed(tmp_path: Path) -> None:
    assert replays(tmp_path / "run", ScaledByItsLoss)[OTHERS_MOVED.title].p_value == 0.0


class InAutocast(Training):
    """Forward pass and loss in half precision."""

    def step(self, x: Any, y: Any) -> None:
        self.private.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.criterion(self.model(x), y)
        loss.backward()
        self.private.step()


class CenteredInAutocast(InAutocast, Centered):
    """A model that mixes records."""


@pytest.mark.ci
def test_steps_under_autocast_are_replayed(tmp_path: Path) -> None:
    checks = replays(tmp_path / "honest", InAutocast)
    assert (checks[SUM_MOVED.title].p_value, checks[OTHERS_MOVED.title].p_value) == (1.0, 1.0)
    assert replays(tmp_path / "centered", CenteredInAutocast)[OTHERS_MOVED.title].p_value == 0.0


def test_a_step_of_another_optimizer_ends_a_trace_that_began_with_its_pass() -> None:
    training = Training().build()
    steps = ReplayedSteps(training.model, training.private, AuditedSteps(), ghost=False)
    other = nn.Linear(6, 2)
    optimizer = torch.optim.Adam(other.parameters())
    with contextlib.ExitStack() as undo:
        steps.attach(lambda observe: observe(), undo)
        nn.functional.cross_entropy(training.model(torch.randn(4, 6)), torch.tensor([0, 1, 1, 0])).backward()
        other(torch.randn(3, 6)).sum().backward()
        optimizer.step()
        steps.before_noise(lambda: ())
    assert (steps.facts.tried, "another optimizer" in steps.facts.failure) == (1, True)


LOGGED: list[float] = []
READING_IN_FORWARD = {
    "a float": lambda x: x / x.abs().max().item(),
    "an integer": lambda x: x * (10.0 * x.abs() < int(8.0 * x.abs().max())),
}


def reading_in_forward(function: Any) -> type[Training]:
    """A model whose forward pass reads numbers of its batch in Python."""

    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    class ReadingTraining(Training):
        def module(self) -> nn.Module:
            return nn.Sequential(Reading(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    return ReadingTraining


@pytest.mark.ci
@pytest.mark.parametrize("name", READING_IN_FORWARD)
def test_numbers_that_the_forward_pass_reads_are_followed(name: str, tmp_path: Path) -> None:
    found = replays(tmp_path / "run", reading_in_forward(READING_IN_FORWARD[name]), epochs=1)
    assert found[OTHERS_MOVED.title].p_value == 0.0


@pytest.mark.ci
def test_numbers_that_the_forward_pass_logs_are_not_rejected(tmp_path: Path) -> None:
    def logged(x: torch.Tensor) -> torch.Tensor:
        LOGGED.append(x.abs().max().item() + int(x.norm()))
        return x

    checks = replays(tmp_path / "run", reading_in_forward(logged), epochs=1)
    assert [checks[name].p_value for name in (SUM_MOVED.title, OTHERS_MOVED.title)] == [1.0, 1.0]
