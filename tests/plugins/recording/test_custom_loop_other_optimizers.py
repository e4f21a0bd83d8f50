"""Custom loops that train a private discriminator, and a generator by another optimizer."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from support.checked_runs import checked
from support.public_mistakes.parts import OwnLoop
from torch import Tensor, nn

OF_PRIVATE_DRAWS = "it reads random numbers of the private batch or noise"

#: The number of fakes of a generator's loss.
FAKES = 12

LossOf = Callable[["Adversarial", Tensor], Tensor]


class Adversarial(OwnLoop):
    """A discriminator that is trained privately, and a generator of features, which take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, self.x.shape[1]))
        self.other = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.mean = self.x.mean(0)

    def generate(self, count: int) -> Tensor:
        fakes: Tensor = self.generator(torch.randn(count, 3))
        return fakes

    def step_generator(self, loss: Tensor) -> None:
        self.other.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.other.step()

    def step_between(self, run: Any, drawn: Tensor, norms: Tensor, total: list[Tensor], loss_of: LossOf) -> None:
        """Make a private step in which the generator steps after the sum."""
        run.sampled(drawn)
        run.clipped(norms)
        run.summed(total)
        self.step_generator(loss_of(self, drawn))
        noise = list(self.noise())
        run.noised(noise)
        for p, t, n in zip(self.parameters, total, noise, strict=True):
            p.grad = (t + n) / (self.rate * self.records)
        self.optimizer.step()
        run.stepped()

    def train(self, run: Any, loss_of: LossOf, *, when: str) -> None:
        """Make six private steps.

        when: the generator steps "after" the private step, after the batch was "drawn", after its sum was "summed", or
        if a number that the loop read of a batch is small ("decided").
        """
        for number in range(6):
            drawn = self.poisson()
            if when == "drawn":
                self.step_generator(loss_of(self, drawn))
            norms, total = self.clipped(self.rows(drawn))
            if when == "summed":
                self.step_between(run, drawn, norms, total, loss_of)
            else:
                self.step(run, drawn, norms, total, self.noise())
            score = float(self.model(self.x[drawn]).mean()) if when == "decided" else 0.0
            if when == "after" or (when == "decided" and number % 3 and score < 1e9):
                self.step_generator(loss_of(self, drawn))

    def cautions(self, folder: Path, loss_of: LossOf, *, when: str = "after") -> str:
        """The caution of the rule, or "" without one."""
        with self.recorder(folder) as run:
            self.train(run, loss_of, when=when)
        rules = checked(folder, epsilon=100.0).audit.recording.rules
        return next((rule.text for rule in rules if rule.name == "second-optimizer"), "")


def of_fakes(gan: Adversarial, _: Tensor) -> Tensor:
    return -gan.model(gan.generate(FAKES)).mean()


def of_a_mean(gan: Adversarial, drawn: Tensor) -> Tensor:
    return of_fakes(gan, drawn) + (gan.generate(FAKES).mean(0) - gan.x[drawn].mean(0)).square().mean()


def of_an_earlier_mean(gan: Adversarial, drawn: Tensor) -> Tensor:
    return of_fakes(gan, drawn) + (gan.generate(FAKES).mean(0) - gan.mean).square().mean()


def of_as_many_fakes(gan: Adversarial, drawn: Tensor) -> Tensor:
    return -gan.model(gan.generate(len(drawn))).mean()


def of_a_number(gan: Adversarial, drawn: Tensor) -> Tensor:
    return of_fakes(gan, drawn) * (1.0 + gan.x[drawn].square().mean().item())


@pytest.mark.family
@pytest.mark.parametrize("when", ["after", "drawn", "summed"])
def test_a_generator_that_reads_the_private_model_alone_gets_no_caution(when: str, tmp_path: Path) -> None:
    assert not Adversarial().cautions(tmp_path / "run", of_fakes, when=when)


@pytest.mark.ci
@pytest.mark.parametrize("when", ["after", "drawn", "summed"])
@pytest.mark.parametrize(
    ("loss_of", "words"),
    [
        (of_a_mean, "do these depend on records"),
        (of_an_earlier_mean, "read tensors of shape 20: do these"),
        (of_as_many_fakes, "more rows in larger batches"),
        (of_a_number, "numbers in the operations of its gradients change from step to step"),
    ],
)
def test_a_generator_that_reads_records_or_their_number_is_named(
    loss_of: LossOf, words: str, when: str, tmp_path: Path
) -> None:
    caution = Adversarial().cautions(tmp_path / "run", loss_of, when=when)
    moved = loss_of is of_a_mean and when == "summed"  # the batch is known
    assert ("its gradients moved with other records" if moved else words) in caution


@pytest.mark.ci
def test_steps_at_times_that_a_number_of_the_batch_decides_are_named(tmp_path: Path) -> None:
    words = "do numbers that the script read decide when"
    assert words in Adversarial().cautions(tmp_path / "run", of_fakes, when="decided")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("is_early", "words"),
    [(True, "reads random numbers of the private batch or noise"), (False, "read tensors of shape 16 x")],
)
def test_a_generator_that_reads_the_noise_is_named(is_early: bool, words: str, tmp_path: Path) -> None:
    class Leaking(Adversarial):
        """The generator steps by the noise of the private step, before the update or after it."""

        def step(self, run: Any, drawn: Tensor, norms: Tensor, total: Any, noise: Any, *_: Any) -> None:
            noise = list(noise)
            for is_before in (True, False):
                if is_before is is_early:
                    self.step_generator(of_fakes(self, drawn) + noise[0].sum() * self.generate(FAKES).mean())
                if is_before:
                    super().step(run, drawn, norms, total, noise)

    assert words in Leaking().cautions(tmp_path / "run", of_fakes, when="never")


@pytest.mark.ci
def test_a_generator_that_reads_which_records_were_drawn_is_named(tmp_path: Path) -> None:
    def of_the_share(gan: Adversarial, _: Tensor) -> Tensor:
        return of_fakes(gan, _) * gan.is_drawn.float().mean()

    class Masked(Adversarial):
        def poisson(self) -> Tensor:
            self.is_drawn = torch.rand(self.records) < self.rate
            return self.is_drawn.nonzero().squeeze(1)

    caution = Masked().cautions(tmp_path / "run", of_the_share, when="drawn")
    assert OF_PRIVATE_DRAWS in caution


@pytest.mark.ci
@pytest.mark.parametrize("when", ["after", "drawn"])
def test_replays_change_neither_weights_nor_random_numbers(when: str, tmp_path: Path) -> None:
    def trained(is_recorded: bool) -> list[Tensor]:
        torch.manual_seed(5)
        gan = Adversarial()
        torch.manual_seed(6)  # the recorder may draw numbers before the block
        with gan.recorder(tmp_path / "run") if is_recorded else contextlib.nullcontext(MagicMock()) as run:
            gan.train(run, of_a_mean, when=when)
        return [*gan.parameters, *gan.generator.parameters(), torch.get_rng_state()]

    assert all(map(torch.equal, trained(True), trained(False)))
