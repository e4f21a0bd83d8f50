"""What the plan says that conformance will see is what it then sees, whoever looks on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import pytest
from support.attacks import attacked, outcomes_of, trials_of

from dpspec.contract import Check
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog

pytestmark = pytest.mark.usefixtures("no_independent_bounds")

#: Assumption, observer and note.
Name: TypeAlias = tuple[str, str, str]

#: Steep features and a small clip norm: every gradient is as long as the clip norm, as the plan takes them to be.
TEXT = """\
dpspec: 1
name: small
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 0.001
  sampling: {scheme: poisson, rate: 0.1}
  steps: 300
data: {kind: synthetic, records: 400, features: 100, classes: 10, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: [1], access: final-model}
claims: [{id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}]
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 300}, seed: 11}
"""


def planned_and_made(tmp_path: Path, *overrides: str) -> tuple[dict[Name, Check], dict[Name, Check]]:
    """The checks that the plan of a spec announces, and those of one trial."""
    spec = attacked(tmp_path, *overrides, text=TEXT)
    planned = prepare(spec, load_catalog()).plan().checks
    return by_name(planned), by_name(outcomes_of(spec, trials_of(spec, 0)))


def by_name(outcomes: Iterable[object]) -> dict[Name, Check]:
    """All checks except those that no plan promises: products of layers, and the step on a neighbor."""
    checks = [c for c in outcomes if isinstance(c, Check) and c.note != "between any two layers"]
    return {(c.assumption, c.observed, c.note): c for c in checks if c.assumption != "data-independent-hyperparameters"}


def test_the_plan_of_a_final_model_audit_foresees_what_few_looks_see(tmp_path: Path) -> None:
    planned, made = planned_and_made(tmp_path)
    assert set(planned) == set(made)
    for name, check in planned.items():
        if name[0] == "update" or name[2].startswith("at every lag"):
            continue  # seen only afterwards: the gradients, and which lag is the worst
        seen = made[name].detectable
        # The length of the gradients at the worst step is known only afterwards.
        near = 0.2 if name[2] == "at each step" else 0.1
        assert check.detectable == (None if seen is None else pytest.approx(seen, rel=near)), name


def test_the_plan_foresees_what_all_steps_see_where_all_are_seen(tmp_path: Path) -> None:
    planned, made = planned_and_made(tmp_path, "threat_model.access=all-iterates", "mechanism.steps=40")
    name = ("sensitivity", "measured", "of an inserted canary, relative to rate * clip norm")
    assert planned[name].detectable == pytest.approx(made[name].detectable, rel=0.1)


def test_where_updates_cannot_be_undone_released_states_are_counted_and_nothing_else_is_measured(
    tmp_path: Path,
) -> None:
    planned, made = planned_and_made(tmp_path, "training.optimizer={kind: adam}", "mechanism.steps=3")
    assert set(planned) == set(made)
    assert {check.assumption for check in planned.values() if check.observed == "measured"} == {"steps"}
