"""Unusual correct scripts conform or get advice; similar faulty scripts are detected."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from opacus.data_loader import DPDataLoader
from support.checked_runs import Question, check_run, run_page
from support.opacus_training import Training, recorded
from support.recordings import Recordings
from torch import nn

from dpspec.cli.app import main

Script = Callable[[Training], None]


def peeked(training: Training) -> None:
    next(iter(training.loader))
    training.train()


def ended_early(training: Training) -> None:
    for _ in range(3):
        for number, (x, y) in enumerate(training.loader):
            if number == 7:
                break
            training.step(x, y)


def fetched_and_ended_early(training: Training) -> None:
    for _ in range(3):
        batches = iter(training.loader)
        following = next(batches)
        for _ in range(6):
            batch, following = following, next(batches)
            training.step(*batch)


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


class TwoTypes(Training):
    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), Double(), nn.Linear(16, 2).double())


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
def test_layers_in_two_precisions_are_proved(clipping: str, tmp_path: Path) -> None:
    TwoTypes(clipping=clipping).run(tmp_path / "run")
    assert check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0)).verdict == "proved"


def evaluated(training: Training) -> None:
    for _ in range(2):
        for x, y in training.loader:
            training.step(x, y)
        training.model.eval()
        for x, _ in training.loader:
            training.model(x)
        training.model.train()


def evaluated_between(training: Training) -> None:
    """Evaluate in the middle of an epoch, which continues afterwards."""
    for number, (x, y) in enumerate(training.loader):
        if number == 4:
            training.model.eval()
            for z, _ in training.loader:
                training.model(z)
            training.model.train()
        training.step(x, y)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "unused"),
    [(peeked, 1), (ended_early, 3), (fetched_and_ended_early, 3), (evaluated, 20), (evaluated_between, 10)],
)
def test_unused_batches_are_no_step(script: Script, unused: int, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script)
    assert found.status == ("proved", "no-deviation-found")
    said = [one.text for one in found.assumptions if one.name == "unused-batches"]
    assert len(said) == 1
    assert said[0].startswith("one batch was" if unused == 1 else f"{unused} batches were")


def fetched_before(training: Training) -> None:
    """The next batch is fetched before the step with the last one."""
    for _ in range(2):
        batches = iter(training.loader)
        following = next(batches)
        while following is not None:
            batch, following = following, next(batches, None)
            training.step(*batch)


def fetched_across_passes(training: Training) -> None:
    batches = (batch for _ in range(2) for batch in training.loader)
    following = next(batches)
    while following is not None:
        batch, following = following, next(batches, None)
        training.step(*batch)


@pytest.mark.ci
@pytest.mark.parametrize("script", [fetched_before, fetched_across_passes])
def test_a_batch_that_was_fetched_before_the_last_step_is_of_the_next_one(script: Script, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script)
    assert found.status == ("proved", "no-deviation-found")
    assert "unused-batches" not in [one.name for one in found.assumptions]


@pytest.mark.ci
def test_unused_batches_of_a_shuffled_loader_are_named(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", ended_early, poisson=False, asked={"adjacency": "zero-out"})
    assert "unused-batches" in [one.name for one in found.assumptions]


def skipped(training: Training) -> None:
    """Skip small batches: the rest is not a Poisson sample."""
    for _ in range(4):
        for x, y in training.loader:
            if len(x) >= 29:
                training.step(x, y)


def chosen(training: Training) -> None:
    """Draw two batches per step and use the preferred one."""
    for _ in range(8):
        first, second = next(iter(training.loader)), next(iter(training.loader))
        training.step(*(first if first[0].sum() > second[0].sum() else second))


@pytest.mark.ci
@pytest.mark.parametrize("workers", [0, 1])
def test_a_choice_among_batches_is_no_proof(workers: int, tmp_path: Path) -> None:
    """The recorder reports an unused batch at every step, and by its size which one, if sizes differ."""
    found = recorded(tmp_path / "run", chosen, workers=workers)
    assert (found.verdict, found.fine) == ("open", False)


def glued(training: Training) -> None:
    """Two batches to one step."""
    training.model.allow_grad_accumulation()
    for number, (x, y) in enumerate(training.loader):
        training.criterion(training.model(x), y).backward()
        if number % 2:
            training.private.step()
            training.private.zero_grad()


def clamped(training: Training) -> None:
    def clamp(training: Training) -> None:
        with torch.no_grad():
            training.private.params[0].clamp_(-0.1, 0.1)

    training.train(each=clamp)


def counting(training: Training) -> None:
    training.model._module.register_buffer("seen", torch.zeros(()))
    training.train(each=lambda t: t.model._module.seen.add_(1.0))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "words"),
    [
        *((script, "Skipping drawn batches changes the sampling distribution") for script in (skipped, glued)),
        (clamped, "after the recorded block"),
        (counting, "belongs outside of the recorded model"),
    ],
)
def test_deviations_come_with_advice(script: Script, words: str, tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", script)
    assert found.conformance.status == "deviates"
    assert words in " ".join(run_page(found, 80).split())


def half_step(training: Training, x: torch.Tensor, y: torch.Tensor) -> None:
    training.private.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = training.criterion(training.model(x), y)
    loss.backward()
    training.private.step()


def half(training: Training) -> None:
    for _ in range(3):
        for x, y in training.loader:
            half_step(training, x, y)


@pytest.mark.ci
def test_clipping_in_half_precision_is_charged(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", half, clip=0.2)
    full = recorded(tmp_path / "full", Training.train, clip=0.2, epochs=3)
    assert found.status == ("proved", "no-deviation-found")
    largest = max(step.largest for step in found.run.folder.internal())
    assert 1.0 + 1e-4 < largest < 1.0 + 5 * 2.0**-8
    (phase,) = found.phases
    assert (phase.noise_multiplier, phase.counted_share) == (1.1, pytest.approx(1.0 / (1.0 + 5 * 2.0**-8), rel=1e-12))
    ours, whole = found.costs[1].interval, full.costs[1].interval
    assert ours is not None
    assert whole is not None
    assert ours.lower < whole.lower < whole.upper < ours.upper
    assert "Gradients were clipped in bfloat16" in run_page(found, 200)


@pytest.mark.ci
def test_the_norms_of_half_precision_are_those_of_what_was_added_up(tmp_path: Path) -> None:
    """The oracle: clip factors times the summed gradients, in float64."""
    summing, squares = torch.einsum, list[torch.Tensor]()

    def noticed(how: str, *what: torch.Tensor) -> torch.Tensor:
        if how == "i,i...":
            squares.append((what[0].double()[:, None] * what[1].double().flatten(1)).square().sum(1))
        return summing(how, *what)

    # First without the recorder, which detects a replaced einsum.
    training = Training(clip=0.2).build()
    x, y = next(iter(training.loader))
    torch.einsum = noticed
    try:
        half_step(training, x, y)
    finally:
        torch.einsum = summing
    found = recorded(tmp_path / "run", lambda t: half_step(t, *next(iter(t.loader))), clip=0.2)
    (kept,) = found.run.folder.internal()
    assert kept.largest == pytest.approx(float(torch.stack(squares).sum(0).sqrt().max()) / 0.2, rel=1e-5)


@pytest.mark.ci
def test_sums_in_half_precision_have_no_bound(tmp_path: Path) -> None:
    def rounded(training: Training) -> None:
        for x, y in training.loader:
            training.step(x.bfloat16(), y)

    found = recorded(tmp_path / "run", rounded, prepare=lambda t: t.model.to(torch.bfloat16), clip=0.2)
    assert found.verdict == "open"
    assert [one.status for one in found.assumptions if one.name == "precision"] == ["unchecked"]
    assert not any(c.p_value == 0.0 and c.assumption == "data-independent-hyperparameters" for c in found.checks)


# The first sentence of an answer.


def test_a_page_without_a_claim_says_so(recordings, capsys):
    sound = recordings["flat"]
    assert main(["check", str(sound)]) == 5
    assert capsys.readouterr().out.splitlines()[0].strip().startswith("NO CLAIM  ")
    assert main(["check", str(sound), "--delta", "1e-9"]) == 5
    assert "noise has real numbers: in float32" in " ".join(capsys.readouterr().out.split())


def test_a_document_without_a_claim_has_no_verdict(recordings, capsys):
    assert main(["check", str(recordings["flat"]), "--report", "json=-"]) == 5
    assert json.loads(capsys.readouterr().out)["audits"][0]["verdicts"] == []


@pytest.mark.parametrize(("delta", "expected"), [("0.0034", True), ("0.0033", False)])
def test_a_page_says_that_delta_is_large(recordings, capsys, delta, expected):
    assert main(["check", str(recordings["flat"]), "--epsilon", "9", "--delta", delta]) == int(expected)
    assert ("is not below 1 over the 300 records" in " ".join(capsys.readouterr().out.split())) is expected


def test_no_noise_never_ends_well(recordings: Recordings, capsys: pytest.CaptureFixture[str]) -> None:
    for claim in ([], ["--epsilon", "1e9"]):
        assert main(["check", str(recordings["no noise"]), *claim]) == 1
        assert "No epsilon is finite" in capsys.readouterr().out


@pytest.mark.ci
def test_an_exception_that_ends_the_block_leaves_the_claim_open(tmp_path: Path) -> None:
    def stop(training: Training) -> None:
        if training.engine.accountant.history[-1][2] == 15:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        recorded(tmp_path / "run", lambda training: training.train(each=stop))
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=100.0))
    assert found.verdict == "open"
    assert "an exception (KeyError) ended the block after 15 steps" in found.reason


# Custom constants.


@pytest.mark.ci
@pytest.mark.parametrize(
    ("rate", "divisor", "stated", "verdict"),
    [
        (0.07, 20.0, False, "proved"),
        (0.05, 20.0, False, "open"),
        (0.05, 20.0, True, "proved"),
        (0.07, 21.0, False, "open"),
        (0.07, 21.0, True, "proved"),
    ],
)
def test_chosen_constants_are_public_if_the_user_declares_them(rate, divisor, stated, verdict, tmp_path):
    """A rate and a divisor that were chosen may be those that make_private would compute."""

    def choose(training: Training) -> None:
        training.loader = DPDataLoader(training.loader.dataset, sample_rate=rate)
        training.private.expected_batch_size = divisor
        hook = training.engine.accountant.get_optimizer_hook_fn(sample_rate=rate)
        training.private.attach_step_hook(hook)

    asked = {"adjacency": "add-remove", "public": ("rate", "divisor") if stated else ()}
    found = recorded(tmp_path / "run", prepare=choose, asked=asked, epochs=1)
    assert found.status == (verdict, "no-deviation-found")
    constants = found.assumption("data-independent-hyperparameters")
    assert ("may be" in constants.text) is not (rate == 0.07 and divisor == 20.0)
    assert ("the user declares divisor, rate public" in constants.text) is stated
