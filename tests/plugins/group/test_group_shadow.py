"""Scores by models that the adversary trained: what an audit shows by them, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.attacks import attacked, outcomes_of, spec_at, trials_of

from dpspec.contract import Finding
from dpspec.contract.attacks import Score
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.descriptors import FAMILIES
from dpspec.registry.loader import load_catalog

SPEC = Path(__file__).parents[3] / "specs" / "attacks" / "planted-records.yaml"
FINAL = "threat_model.access=final-model"
CLAIM = "claims=[{id: eight, kind: approx-dp, epsilon: 30.0, delta: 1e-5, group_size: 8}]"
SMALL = (FINAL, "audit.canary={space: input, kind: noise, count: 60}")


def ranks(trial) -> float:
    """How often a planted group is scored above one that is not; by chance half of the time."""
    scores, coins = trial.arrays["scores"], trial.arrays["coins"]
    return float((scores[coins == 1][:, None] > scores[coins == 0][None, :]).mean())


@pytest.mark.ci
def test_digits_show_more_than_by_their_loss(tmp_path: Path) -> None:
    """250 groups of eight mislabelled digits, of which 25.5 is proved: guessing, ranks have a deviation of .04. What a
    digit's loss is for other reasons drowns most of what planting it does."""
    digits = (FINAL, CLAIM, "threat_model.group_size=8", "audit.canary.count=250")
    found = {}
    for score in ("loss", "shadow"):
        spec = spec_at(SPEC, *digits, f"audit.score={score}")
        trials = trials_of(spec, 0)
        found[score] = ranks(trials[0])
        outcomes = outcomes_of(spec, trials)
        (shown,) = [f for f in outcomes if isinstance(f, Finding) and (f.quantity, f.bound) == ("epsilon", "lower")]
        assert 0.0 <= shown.value < 25.5
        assert f"by {score}" in shown.method
        assert not {"attack-code"} & {a.name for a in shown.assumptions}
    assert found["shadow"] > found["loss"] + 0.05
    assert found["shadow"] > 0.65


def test_a_plan_says_what_they_cost(tmp_path: Path) -> None:
    """The run, its twin, and 32 models."""
    specs = [attacked(tmp_path, *SMALL, f"audit.score={score}") for score in ("loss", "shadow")]
    seconds = [prepare(spec, load_catalog()).plan().seconds for spec in specs]
    assert seconds[1] > 8 * seconds[0]


@pytest.mark.parametrize(("models", "fits"), [(0, True), (32, True), (-1, False), (True, False), ("32", False)])
def test_how_many_models_is_a_whole_number(models: Any, fits: bool) -> None:
    (family,) = [family for family in FAMILIES if family.name == "score"]
    flaws = list(family.check(Score(kind="mine", summary="Mine.", score="mine:score", models=models)))
    assert [flaw for flaw in flaws if flaw.startswith("models must be")] == flaws
    assert (flaws == []) == fits
