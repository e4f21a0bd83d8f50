"""The choice of audited steps, its power, and the comparisons that are made there."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checked_runs import Question, check_run
from support.opacus_training import Training

from dpspec.errors import UsageError
from dpspec_recording import audited_steps
from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.folder import audit_facts
from dpspec_recording.folder.audit_facts import FIRST, POWER, AuditFacts, found_faults
from dpspec_recording.observers.sensitivity.replays import Replays
from dpspec_recording.observers.sensitivity.sums import EDITED


def chosen(steps: int, share: float) -> list[bool]:
    """Return whether each step of a run was audited."""
    audits = AuditedSteps(share)
    audited = []
    for _ in range(steps):
        audited.append(audits.audited)
        audits.end_step()
    assert audits.facts == AuditFacts(steps=steps, audited=sum(audited), share=share)
    return audited


def test_the_first_steps_and_a_share_of_the_later_ones_are_audited() -> None:
    every = [chosen(400, 0.1) for _ in range(200)]
    assert all(all(audited[:FIRST]) for audited in every)
    later = np.array([audited[FIRST:] for audited in every])
    assert abs(later.mean() - 0.1) < 5.0 * math.sqrt(0.09 / later.size)
    assert later.any(axis=0).all()  # no step is left out
    assert all(chosen(400, 1.0))


@pytest.mark.parametrize("steps", [0, 1, 50, 51, 60, 94, 1000, 100_000])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 1.0])
def test_the_number_of_found_faults_is_the_smallest_with_its_power(steps: int, share: float) -> None:
    """The worst case: as many faulty steps as possible are later ones, each audited with probability ``share``."""

    def missed(faulty: int) -> float:
        return 0.0 if faulty > steps - FIRST and faulty > 0 else (1.0 - share) ** faulty

    faulty = found_faults(steps, share)
    assert faulty <= max(0, steps)
    if steps:
        assert missed(faulty) <= 1.0 - POWER + 1e-12
        assert faulty == 1 or missed(faulty - 1) > 1.0 - POWER


def test_simulated_audits_find_that_many_faults() -> None:
    faulty, generator = found_faults(1000, 0.1), np.random.default_rng(7)
    assert faulty == 44
    found = (generator.random((200_000, faulty)) < 0.1).any(axis=1).mean()
    assert POWER <= found < POWER + 0.002


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan"), True, "all"])
def test_other_shares_are_refused(share: Any) -> None:
    with pytest.raises(UsageError, match="audit must be the share of audited steps, above 0 and at most 1"):
        AuditedSteps(share)


def audited_counts(folder: Path, script: Any, monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[int, int]:
    """Return the numbers of steps and of audited steps without the first and the random ones."""
    monkeypatch.setattr(audited_steps, "FIRST", 1)
    training = Training().build()
    training.private.noise_multiplier = 3.0
    with training.recorder(folder, **{"audit": 1e-12, **given}) as run:
        script(training)
    steps, audited = run._training.audits.facts.steps, run._training.audits.facts.audited
    return int(steps), int(audited)


def evaluating(training: Training) -> None:
    def evaluate(training: Training) -> None:
        training.model.eval()
        training.model(torch.randn(3, 6))
        training.model.train()

    training.train(each=evaluate)


@pytest.mark.family
@pytest.mark.parametrize(
    ("script", "given", "audited"),
    [
        (Training.train, {}, 3),  # the first step, and the last of each pass
        (Training.train, {"audit": 1.0}, 20),
        (evaluating, {}, 20),
        (lambda training: training.train(each=lambda t: t.model.state_dict()), {}, 20),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_steps_at_which_a_mistake_is_likely_are_audited(script, given, audited, tmp_path, monkeypatch):
    steps, count = audited_counts(tmp_path / "run", script, monkeypatch, **given)
    assert steps == 20
    assert count in (audited, audited + 1, audited + 2)  # a batch may be small


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("audit", "words"), [(1.0, "all 20 steps audited"), (1e-12, "steps audited: 20 wrong")])
def test_the_report_states_the_power(audit: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of the fifth step has 1.5 times its length; it is audited only if all are."""
    monkeypatch.setattr(audited_steps, "FIRST", 1)
    monkeypatch.setattr(audit_facts, "FIRST", 1)
    training, number = Training().build(), 0
    original = training.private.add_noise

    def grow() -> None:
        nonlocal number
        number += 1
        for p in training.private.params if number == 5 else ():
            p.summed_grad *= 1.5
        original()

    training.private.add_noise = grow
    with training.recorder(tmp_path / "run", audit=audit):
        training.train()
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=10.0))
    assert words in found.audit.recording.ran
    assert f"{found.run.fact(Replays).replayed:.0f} replayed" in found.audit.recording.ran
    sums = next(check for check in found.tests if check.test.startswith(EDITED.title))
    assert sums.test.endswith("exact") is (audit == 1.0)
    assert "of 20 steps" in sums.note
