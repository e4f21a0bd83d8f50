"""Claims about the best cell of a matrix."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.specs import written

from dpspec.language.load import Loaded, from_document, load_specs
from dpspec.registry.loader import load_catalog

Load = Callable[..., Loaded]

SPEC = """\
dpspec: 1
name: sweep
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.01}, steps: 10}
data: {kind: declared, records: 1000, features: 3, classes: 2}
training: {learning_rate: 0.5}
matrix: {mechanism.noise_multiplier: [1.0, 2.0], training.learning_rate: [0.1, 0.2]}
claims:
  - {kind: approx-dp, epsilon: 2.0, delta: 1e-6}
  - {kind: approx-dp, epsilon: 4.0, delta: 1e-6, over: matrix}
"""
TRIES = "tuning: {tries: {distribution: poisson, mean: 4}}\n"


@pytest.fixture
def sweep(tmp_path: Path) -> Load:
    return lambda text, *overrides: load_specs([written(tmp_path, text)], load_catalog(), overrides)


def test_the_claim_is_one_of_a_spec_about_the_best_cell(sweep: Load) -> None:
    loaded = sweep(SPEC + TRIES)
    assert loaded.diagnostics == ()
    *cells, best = loaded.specs
    assert [spec.name for spec in cells] == ["sweep[1.0, 0.1]", "sweep[1.0, 0.2]", "sweep[2.0, 0.1]", "sweep[2.0, 0.2]"]
    assert all([claim.id for claim in spec.claims] == ["claim-1"] for spec in cells)
    assert best.name == "sweep best of 4"
    assert [(claim.id, claim.over) for claim in best.claims] == [("claim-2", None)]
    held = [
        (cell["mechanism"]["noise_multiplier"], cell["training"]["learning_rate"]) for cell in best.mechanism["cells"]
    ]
    assert held == [(1.0, 0.1), (1.0, 0.2), (2.0, 0.1), (2.0, 0.2)]
    assert best.mechanism["tries"] == {"distribution": "poisson", "mean": 4.0}
    assert best.origin["claims", 0, "epsilon"].line == 9
    assert not any("tuning" in spec.document or "matrix" in spec.document for spec in loaded.specs)


def test_cells_without_claims_of_their_own_are_no_audits(sweep: Load) -> None:
    (best,) = sweep(SPEC.replace("  - {kind: approx-dp, epsilon: 2.0, delta: 1e-6}\n", "")).specs
    assert (best.name, len(best.mechanism["cells"])) == ("sweep best of 4", 4)
    again = from_document(best.document, load_catalog(), best.directory)
    assert again.digest == best.digest


def test_the_command_line_reaches_claim_cells_and_tries(sweep: Load) -> None:
    given = ("claims.claim-2.epsilon=9", "mechanism.steps=20", "tuning.tries.mean=7", "training.learning_rate=1.0")
    *cells, best = sweep(SPEC + TRIES, *given).specs
    assert best.claims[0]["epsilon"] == 9.0
    assert [cell["mechanism"]["steps"] for cell in best.mechanism["cells"]] == [20, 20]
    assert best.mechanism["tries"]["mean"] == 7.0
    assert (len(cells), best.name) == (2, "sweep best of 2")


WRONG = {
    "no matrix": ("matrix: {mechanism.noise_multiplier: [1.0, 2.0], training.learning_rate: [0.1, 0.2]}\n", "",
                  "bad-value", "and this spec has none", 8),
    "another kind": ("kind: approx-dp, epsilon: 4.0, delta: 1e-6, over", "kind: gdp, mu: 4.0, over",
                     "claim-not-judged", "got 'gdp'", 9),
    "one record": ("over: matrix", "over: matrix, record: 3", "bad-value", "covers all records", 9),
    "other data": ("training.learning_rate: [0.1, 0.2]", "data.records: [100, 1000]",
                   "bad-matrix", "must agree in data", 9),
    "other adversaries": ("training.learning_rate: [0.1, 0.2]", "threat_model.access: [all-iterates, final-model]",
                          "bad-matrix", "must agree in threat_model", 9),
    "another claim in each": ("training.learning_rate: [0.1, 0.2]", "claims.claim-2.epsilon: [3.0, 4.0]",
                              "bad-matrix", "must be equal in all cells", 9),
    "another tuning in each": ("training.learning_rate: [0.1, 0.2]", "tuning.tries.mean: [3.0, 4.0]",
                               "bad-matrix", "cannot vary over a matrix", 6),
    "a cell that is no cell": ("[1.0, 2.0]", "[1.0, many]", "wrong-type", "noise_multiplier must be a number", 6),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=list(WRONG))
def test_what_cannot_be_said_of_the_best_cell_is_told_in_its_place(sweep: Load, case: str) -> None:
    before, after, code, message, line = WRONG[case]
    loaded = sweep(SPEC.replace(before, after))
    assert not loaded.specs
    places = [(d.code, d.span.line) for d in loaded.diagnostics if d.span is not None and message in d.message]
    assert places == [(code, line)], [d.message for d in loaded.diagnostics]


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ("tuning: {tries: {distribution: geometric, mean: 0.5}}\n", "mean must be at least 1"),
        ("tuning: {tries: {distribution: poisson, mean: 4, eta: 1}}\n", "'eta' is not allowed without"),
        ("tuning: {tries: {distribution: truncated-negative-binomial, mean: 4}}\n", "missing key 'eta'"),
    ],
)
def test_a_law_of_tries_that_is_none_is_told_in_its_place(sweep: Load, tuning: str, message: str) -> None:
    loaded = sweep(SPEC + tuning)
    assert not loaded.specs
    places = [d.span.line for d in loaded.diagnostics if d.span is not None and message in d.message]
    assert places == [10], [d.message for d in loaded.diagnostics]


def test_tries_that_no_claim_speaks_of_are_refused(sweep: Load) -> None:
    loaded = sweep(SPEC.replace(", over: matrix", "") + TRIES)
    assert [d.message for d in loaded.diagnostics] == [
        "tuning describes the selection of a matrix cell, but no claim has over: matrix"
    ]
