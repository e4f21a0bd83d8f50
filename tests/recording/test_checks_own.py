"""Advice that follows the rejected checks of a recorded run."""

from __future__ import annotations

import pytest
from support.checked_runs import Question, check_run
from support.plain_loop import plain_loop

from dpspec.contract import Check
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.checks import advice


def advised(folder, **given) -> dict[str, str]:
    """The advice of each rejected check of a plain loop."""
    plain_loop(folder, 60, **given)
    checks = check_run(folder, Question(delta=1e-5)).checks
    bad = [check for check in checks if rejected(check, len(checks))]
    return {f"{check.test}; {check.note}": advice(check, bad) for check in bad}


def test_half_the_noise_everywhere_is_advice_about_the_noise_multiplier(tmp_path):
    given = advised(tmp_path / "run", scales=(0.5, 0.5))
    words = set(given.values()) - {""}
    assert len(words) == 1
    assert words.pop().startswith("All noise has 0.5")
    assert any(name.startswith("chi-square of the quietest layer") for name in given)


@pytest.mark.parametrize(
    ("given", "words", "others"),
    [
        ({"scales": (0.5, 1.0)}, "One tensor of the model got less noise than the others", "All noise has"),
        ({"draw": "randperm"}, "same size, as torch.randperm(records)[:size] draws them", "shuffled epoch"),
        ({"draw": "epochs"}, "All records were drawn equally often, as from a shuffled epoch", "All noise has"),
    ],
)
def test_rejected_checks_come_with_advice(given, words, others, tmp_path):
    found = " ".join(advised(tmp_path / "run", **given).values())
    assert words in found
    assert others not in found


def test_poisson_samples_and_declared_noise_need_no_advice(tmp_path):
    assert advised(tmp_path / "run") == {}


def test_a_check_by_itself_keeps_its_advice():
    layer = Check(
        assumption="per-layer-noise",
        test="chi-square of the quietest layer",
        p_value=0.0,
        note="in each layer, least in 0.weight",
        measured=0.5,
        observed="reported",
    )
    assert advice(layer).startswith("One tensor of the model")
