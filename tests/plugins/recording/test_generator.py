"""The generator of a recorded noise, and the delta that its float32 numbers reveal."""

from typing import Any

import pytest
from support.checked_runs import Question, check_run
from support.opacus_training import Training, recorded
from support.recordings import Recordings

from dpspec.accounting.float_noise import revealed_by_float32
from dpspec.reporters import statement
from dpspec_recording.judge.generator import recorded_noise


def secure(training: Training) -> None:
    training.private.secure_mode = True


@pytest.fixture(scope="module")
def runs(recordings: Recordings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plain = check_run(recordings["flat"], Question(delta=1e-5, epsilon=100.0))
    return {"plain": plain, "secure": recorded(tmp_path_factory.mktemp("runs") / "secure", prepare=secure, epochs=1)}


@pytest.mark.ci
def test_float32_numbers_reveal_a_delta(runs: dict[str, Any]) -> None:
    run = runs["plain"].run
    noise = recorded_noise(run)
    assert noise is not None
    assert (noise.generator, noise.draws, noise.integers) == ("torch's CPU generator", 1, False)
    values = sum(size - size % 16 for _, size in run.header.layers)
    (phase,) = runs["plain"].phases
    expected = revealed_by_float32(phase.noise_multiplier, values, rate=phase.rate, steps=phase.steps).delta
    assert noise.revealed == pytest.approx(expected, rel=1e-9)
    assert 0.0 < noise.revealed < 1.0
    assert noise.seed_bits is not None
    assert runs["plain"].audit.recording.origin.noise == noise


def test_four_draws_are_no_proof(runs: dict[str, Any]) -> None:
    """The sum of four draws ends at twice the distance: F1 states nothing, and the bound still assumes real numbers."""
    noise = recorded_noise(runs["secure"].run)
    assert noise is not None
    assert (noise.draws, noise.revealed) == (4, 0.0)
    assert runs["secure"].verdict == runs["plain"].verdict
    assert runs["secure"].assumption("exact-arithmetic").status == "declared"


def test_the_statement_names_generator_and_method(runs: dict[str, Any]) -> None:
    plain, secure_run = (statement.render(run.result) for run in runs.values())
    assert "drawn by torch's CPU generator with a seed of" in plain
    assert "no finite epsilon holds below delta" in plain
    assert "sum of 4 draws" in secure_run
    assert "no finite epsilon holds below delta" not in secure_run
