"""Mistakes from public threads, and their honest twins, as ``dpspec check`` sees them."""

import re
from pathlib import Path

import pytest
import torch
from support.checked_runs import CheckedRun, checked, run_page
from support.public_mistakes import accounting, clipping, noise, sampling  # noqa: F401 - they register scripts
from support.public_mistakes.parts import DELTA, MISTAKES, PublicMistake

import dpspec
from dpspec.errors import ExitCode, UsageError
from dpspec_recording.judge.run_claim import RunClaim

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "mistakes.md"


def trained(folder: Path, mistake: PublicMistake, *, mistaken: bool) -> CheckedRun:
    options = mistake.claim if mistaken else {**mistake.claim, **mistake.twin_claim}
    epsilon = mistake.script(folder, mistaken)
    return checked(folder, delta=DELTA, epsilon=epsilon, **options)


@pytest.mark.family
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.script.__name__)
def test_a_mistake_is_named(tmp_path, mistake):
    result = trained(tmp_path / "run", mistake, mistaken=True)
    text = " ".join(run_page(result, 80).split())
    assert re.search(mistake.words, text), text
    if mistake.says == "deviates":
        assert result.conformance.status == "deviates", text
        assert not result.fine
    else:
        verdict = mistake.says if mistake.says in ("open", "refuted") else "proved"
        assert result.status == (verdict, "no-deviation-found"), text
    assert result.exit_code is ExitCode.UNEXPECTED


@pytest.mark.family
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.script.__name__)
def test_its_honest_twin_is_proved(tmp_path, mistake):
    result = trained(tmp_path / "run", mistake, mistaken=False)
    assert result.status == ("proved", "no-deviation-found"), run_page(result, 80)
    assert result.exit_code is ExitCode.OK, run_page(result, 80)


def test_a_divisor_that_counts_the_records_differs_in_a_replay():
    def make(mistaken):
        return lambda data: {"divisor": int(len(data) / 7) if mistaken else 205}

    data = torch.arange(1435.0)
    assert not dpspec.replay(make(True), data).same
    assert dpspec.replay(make(False), data).same


def test_a_claim_for_replaced_records_is_refused():
    with pytest.raises(UsageError, match="must be zero-out or add-remove for a recorded run, got 'replace-one'"):
        RunClaim(adjacency="replace-one").require_valid()


def test_the_page_names_each_source():
    page = PAGE.read_text()
    missing = {one.source for one in MISTAKES if one.source not in page}
    assert not missing
