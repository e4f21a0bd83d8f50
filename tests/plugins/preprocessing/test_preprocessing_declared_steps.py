"""Steps are read once, each with its own options; what a spec cannot mean is refused, and never read otherwise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpspec.contract import Facts
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec_preprocessing.options import Declaration
from dpspec_preprocessing.refusals import refusals
from dpspec_preprocessing.sensitivity import Imputation, Merging, Projection, Scaling, Step, read_step


@pytest.mark.parametrize(
    ("block", "step", "name"),
    [
        ({"impute": "mean"}, Imputation(name="mean"), "mean"),
        ({"impute": "mean", "mask": "same"}, Imputation(name="mean", same_mask=True), "mean"),
        ({"impute": "mean", "mask": "any"}, Imputation(name="mean"), "mean"),
        ({"impute": "trimmed", "trim": 4}, Imputation(name="trimmed", trim=4), "trimmed"),
        ({"deduplicate": 0}, Merging(name="deduplicate", eta=0.0), "deduplicate"),
        ({"quantise": 0.25}, Merging(name="quantise", eta=0.25), "quantise"),
        ({"pca": 3}, Projection(components=3), "pca"),
        ({"pca": 3, "affine": True}, Projection(components=3, affine=True), "pca"),
        ({"scale": "standard", "clip": 2}, Scaling(clip=2.0), "scale"),
    ],
)
def test_each_step_has_its_own_options(block: dict[str, Any], step: Step, name: str) -> None:
    assert read_step(block) == step
    assert step.name == name


def test_what_lacks_its_clip_is_read_without_one_and_refused() -> None:
    assert read_step({"scale": "standard"}) == Scaling(clip=math.inf)


SPEC = """\
dpspec: 1
name: swept
mechanism:
  kind: preprocessing
  pipeline: [{STEP}]
  private: {kind: gaussian, eps_noise: 0.3}
  sweep: {over: eta, values: [0.1, 0.2]}
data: {kind: synthetic, pattern: blobs, records: 200, features: 4, classes: 2}
threat_model: {adjacency: replace-one}
claims: [{kind: approx-dp, epsilon: 50.0, delta: 1e-5}]
"""


@pytest.mark.parametrize(
    ("step", "refused"),
    [
        ("deduplicate: 0.01", False),
        ("quantise: 0.01", False),
        ("pca: 2", True),  # a deduplication was swept under the title of a projection
        ("impute: mean", True),
        ("scale: standard, clip: 1.0", True),
    ],
)
def test_eta_is_swept_where_the_first_step_has_one(tmp_path: Path, step: str, refused: bool) -> None:
    path = tmp_path / "swept.yaml"
    path.write_text(SPEC.replace("STEP", step), encoding="utf-8")
    loaded = load_specs([path], load_catalog())
    assert loaded.ok, loaded.diagnostics
    (spec,) = loaded.specs
    facts = Facts(records=200, features=4, classes=2, shape=(4,))
    errors = [(d.code, d.path) for d in refusals(spec, facts) if d.severity == "error"]
    assert errors == ([("unsupported", ("mechanism", "sweep", "over"))] if refused else [])
    assert Declaration.of(spec.mechanism.options).steps[0].name in step


@pytest.mark.parametrize(("word", "warned"), [("certified", True), ("repaired", False)])
def test_the_old_word_for_repaired_formulas_gives_a_warning(tmp_path: Path, word: str, warned: bool) -> None:
    path = tmp_path / "old.yaml"
    swept = "  sweep: {over: eta, values: [0.1, 0.2]}"
    path.write_text(SPEC.replace("STEP", "quantise: 0.01").replace(swept, f"  accounting: {word}"), encoding="utf-8")
    loaded = load_specs([path], load_catalog())
    assert loaded.ok, loaded.diagnostics
    facts = Facts(records=200, features=4, classes=2, shape=(4,))
    found = [(d.severity, d.help) for d in refusals(loaded.specs[0], facts) if d.path == ("mechanism", "accounting")]
    assert found == ([("warning", "write accounting: repaired")] if warned else [])
