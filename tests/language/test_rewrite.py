"""Phases from a formula: what they stand for is what a list of phases would say."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dpspec.contract import Spec, thaw
from dpspec.contract.catalog import Catalog
from dpspec.language.load import Loaded, from_document, load_specs
from dpspec.language.rewrite import expand_phases
from dpspec.language.tree import from_plain, plain
from dpspec.registry.loader import load_catalog

Load = Callable[..., Loaded]

BLOCK = "  noise_multiplier: 1\n  clip_norm: 1.0\n  sampling: {scheme: poisson, rate: 0.01}\n  steps: 100\n"


def scheduled(valid: str, phases: str) -> str:
    assert BLOCK in valid
    return valid.replace(BLOCK, f"  clip_norm: 1.0\n  sampling: {{scheme: poisson, rate: 0.01}}\n  phases: {phases}\n")


def only(loaded: Loaded) -> Spec:
    assert loaded.diagnostics == ()
    (spec,) = loaded.specs
    return spec


def phases_of(text: str) -> list[dict[str, object]]:
    root, wrong = expand_phases(from_plain({"mechanism": {"phases": yaml.safe_load(text)}}), Catalog())
    assert wrong == []
    return plain(root)["mechanism"]["phases"]  # type: ignore[no-any-return]


class TestFormula:
    @pytest.mark.parametrize(("shape", "middle"), [("linear", 2.5), ("geometric", 2.0), ("cosine", 2.5)])
    def test_three_phases(self, shape: str, middle: float) -> None:
        found = phases_of(f"{{steps: 250, every: 100, noise_multiplier: {{from: 4, to: 1, shape: {shape}}}}}")
        assert [phase["steps"] for phase in found] == [100, 100, 50]
        assert [phase["noise_multiplier"] for phase in found] == pytest.approx([4.0, middle, 1.0])

    def test_a_quarter_of_a_cosine(self) -> None:
        found = phases_of("{steps: 5, noise_multiplier: {from: 3, to: 1, shape: cosine}}")
        assert found[1]["noise_multiplier"] == pytest.approx(1.0 + 2.0 * (1.0 + math.cos(math.pi / 4)) / 2.0)

    @given(
        steps=st.integers(1, 5000),
        every=st.integers(1, 800),
        ends=st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
        shape=st.sampled_from(["linear", "geometric", "cosine"]),
    )
    def test_it_begins_and_ends_as_it_says_and_goes_one_way(
        self, steps: int, every: int, ends: tuple[float, float], shape: str
    ) -> None:
        text = yaml.safe_dump({"steps": steps, "every": every, "x": {"from": ends[0], "to": ends[1], "shape": shape}})
        root, wrong = expand_phases(from_plain({"mechanism": {"phases": yaml.safe_load(text)}}), Catalog())
        if -(-steps // every) > 1000:
            assert [d.code for d in wrong] == ["bad-value"]
            return
        found = plain(root)["mechanism"]["phases"]
        assert sum(phase["steps"] for phase in found) == steps
        assert all(phase["steps"] == every for phase in found[:-1])
        values = [phase["x"] for phase in found]
        assert (values[0], values[-1]) == (ends[0], ends[1] if len(found) > 1 else ends[0])
        up = sorted(values) if ends[0] <= ends[1] else sorted(values, reverse=True)
        assert values == pytest.approx(up)

    def test_it_is_the_list_that_it_stands_for(self, load: Load, valid: str) -> None:
        formula = "{steps: 20, every: 10, noise_multiplier: {from: 2, to: 1}, sampling: {rate: {from: 0.1, to: 0.2}}}"
        written = (
            "[{steps: 10, noise_multiplier: 2.0, sampling: {scheme: poisson, rate: 0.1}}, "
            "{steps: 10, noise_multiplier: 1.0, sampling: {scheme: poisson, rate: 0.2}}]"
        )
        spec, other = only(load(scheduled(valid, formula))), only(load(scheduled(valid, written)))
        assert spec.phases == other.phases
        assert spec.digest == other.digest
        assert isinstance(thaw(spec.document)["mechanism"]["phases"], list)

    def test_a_matrix_varies_it(self, load: Load, valid: str) -> None:
        text = scheduled(valid, "{steps: 4, noise_multiplier: {from: 2, to: 1}}")
        loaded = load(f"{text}matrix: {{mechanism.phases.every: [1, 2]}}\n")
        assert [len(spec.phases) for spec in loaded.specs] == [4, 2]


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        ("{}", "missing key 'steps' in mechanism.phases"),
        ("{table: s.csv}", "unknown key 'table' in mechanism.phases"),
        ("{steps: 9, noise_multiplyer: {from: 2, to: 1}}", "mechanism.phases; did you mean 'noise_multiplier'?"),
        ("{steps: true}", "steps must be an integer, got true"),
        ("{steps: 2.5}", "steps must be an integer, got 2.5"),
        ("{steps: 10, every: 0}", "every must be at least 1, got 0"),
        ("{steps: 1001}", "1001 steps in phases of 1 are 1001 phases; the maximum is 1000"),
        ("{steps: 9, noise_multiplier: {from: 2}}", "of a schedule must be a number"),
        ("{steps: 9, noise_multiplier: {from: 2, to: [1]}}", "of a schedule must be a number"),
        ("{steps: 9, noise_multiplier: {from: 2, to: 1, by: 3}}", "'by' cannot be combined"),
        ("{steps: 9, noise_multiplier: {from: 2, to: 1, shape: round}}", "shape must be one of linear"),
        ("{steps: 9, noise_multiplier: {from: 2, to: 0, shape: geometric}}", "needs from and to above 0"),
    ],
)
def test_what_is_no_schedule_is_told_of(phases: str, says: str, load: Load, valid: str) -> None:
    loaded = load(scheduled(valid, phases))
    assert loaded.specs == ()
    *_, wrong = loaded.diagnostics
    assert says in wrong.message
    assert wrong.span is not None


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
    def load(text: str, *overrides: str) -> Loaded:
        path = tmp_path / "sweep.yaml"
        path.write_text(text, encoding="utf-8")
        return load_specs([path], load_catalog(), overrides)

    return load


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


def test_a_long_name_is_cut_so_that_it_stays_one(sweep: Load) -> None:
    *_, best = sweep(SPEC.replace("name: sweep", f"name: {'s' * 80}")).specs
    assert len(best.name) == 80
    assert best.name.endswith("s best of 4")


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
    told = [(d.code, d.span.line) for d in loaded.diagnostics if d.span is not None and message in d.message]
    assert told == [(code, line)], [d.message for d in loaded.diagnostics]


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ("tuning: {}\n", "missing key 'tries'"),
        ("tuning: {tries: {distribution: poissn, mean: 4}}\n", "did you mean 'poisson'"),
        ("tuning: {tries: {distribution: geometric, mean: 0.5}}\n", "mean must be at least 1"),
        ("tuning: {tries: {distribution: poisson, mean: 4, eta: 1}}\n", "'eta' is not allowed without"),
        ("tuning: {tries: {distribution: truncated-negative-binomial, mean: 4}}\n", "missing key 'eta'"),
        ("tuning: {tries: {distribution: poisson, mean: 4}, by: hand}\n", "unknown key 'by'"),
    ],
)
def test_a_law_of_tries_that_is_none_is_told_in_its_place(sweep: Load, tuning: str, message: str) -> None:
    loaded = sweep(SPEC + tuning)
    assert not loaded.specs
    told = [d.span.line for d in loaded.diagnostics if d.span is not None and message in d.message]
    assert told == [10], [d.message for d in loaded.diagnostics]


def test_tries_that_no_claim_speaks_of_are_refused(sweep: Load) -> None:
    loaded = sweep(SPEC.replace(", over: matrix", "") + TRIES)
    assert [d.message for d in loaded.diagnostics] == [
        "tuning describes the selection of a matrix cell, but no claim has over: matrix"
    ]
