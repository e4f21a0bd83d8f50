"""The whole of what is printed where a user's choice is at fault: the place, the rule and the way out.

Of models that cannot be trained: ``tests/engine/test_prepare.py``. Of every code: ``specs/invalid``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PARENT = """\
dpspec: 1
name: parent
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 5}
data: {kind: declared, records: 100, features: 2, classes: 2}
threat_model: {group_size: 1}
claims: [{id: one, kind: approx-dp, epsilon: 9.0, delta: 1e-5}]
"""

CHILD = """\
dpspec: 1
name: child
extends: parent.yaml
data: {kind: csv, path: rows.csv, label: ill, classes: [no, yes]}
"""

MENDED = CHILD.replace("[no, yes]}", "[no, yes], records: null, features: null, columns: [age]}")

TRAINED = """\
model: {kind: mlp, hidden: [8]}
training: {learning_rate: 0.5}
audit: {method: one-run, canary: {count: 8}, seed: 1}
"""

ROWS = "age,smoker,ill\n" + "51,yes,no\n40,no,yes\n" * 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parent.yaml").write_text(PARENT, encoding="utf-8")
    (tmp_path / "child.yaml").write_text(CHILD, encoding="utf-8")
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path


def test_a_child_with_other_data_is_told_how_to_drop_what_it_inherits(
    dpspec: Callable[..., object], folder: Path
) -> None:
    ended = dpspec("validate", "child.yaml")
    assert ended.code == 3
    assert (
        ended.out
        == """\
parent.yaml:4:24: error[unknown-key]: unknown key 'records' in data; did you mean 'records_per_user'?
 4 | data: {kind: declared, records: 100, features: 2, classes: 2}
   |                        ^^^^^^^
   = help: valid keys: categories, classes, columns, kind, label,
           max_records_per_user, missing, path, public, radius,
           records_per_user, seed, size, split, standardise, user; it is
           inherited: data.records: null in child.yaml drops it

parent.yaml:4:38: error[unknown-key]: unknown key 'features' in data
 4 | data: {kind: declared, records: 100, features: 2, classes: 2}
   |                                      ^^^^^^^^
   = help: valid keys: categories, classes, columns, kind, label,
           max_records_per_user, missing, path, public, radius,
           records_per_user, seed, size, split, standardise, user; it is
           inherited: data.features: null in child.yaml drops it
"""
    )
    (folder / "child.yaml").write_text(MENDED, encoding="utf-8")
    assert dpspec("validate", "child.yaml").code == 0


def test_the_category_that_was_told_is_taken(dpspec: Callable[..., object], folder: Path) -> None:
    (folder / "rows.csv").write_text(f"{ROWS}40,,yes\n", encoding="utf-8")
    chosen = '[smoker], categories: {smoker: [yes, no, ""]}'
    (folder / "child.yaml").write_text(MENDED.replace("[age]", chosen) + TRAINED, encoding="utf-8")
    assert dpspec("run", "child.yaml").code == 0
