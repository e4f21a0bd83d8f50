"""Phases from a formula: what they stand for is what a list of phases would say."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dpspec.contract import Spec, thaw
from dpspec.contract.catalog import Catalog
from dpspec.language.load import Loaded
from dpspec.language.rewrite import expand_phases
from dpspec.language.tree import from_plain, plain

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
        ("{}", "need steps"),
        ("{table: s.csv}", "unknown key 'table' in mechanism.phases"),
        ("{steps: 9, noise_multiplyer: {from: 2, to: 1}}", "mechanism.phases; did you mean 'noise_multiplier'?"),
        ("{steps: true}", "steps must be an integer of at least 1"),
        ("{steps: 2.5}", "steps must be an integer of at least 1"),
        ("{steps: 10, every: 0}", "every must be an integer of at least 1"),
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
    (wrong,) = loaded.diagnostics
    assert says in wrong.message
    assert wrong.span is not None
