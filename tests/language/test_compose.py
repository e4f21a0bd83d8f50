from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dpspec.contract import Span, Spec
from dpspec.language.load import Loaded

Load = Callable[..., Loaded]

#: Phases whose clip norm falls.
FORMULA = "{steps: 10, every: 5, clip_norm: {from: 3, to: 2}}"


def only(loaded: Loaded) -> Spec:
    assert loaded.diagnostics == ()
    (spec,) = loaded.specs
    return spec


def told(loaded: Loaded) -> list[tuple[str, int, int]]:
    assert loaded.specs == ()
    return [(d.code, d.span.line, d.span.column) for d in loaded.diagnostics if d.span]


class TestExtends:
    def test_maps_merge_lists_replace_null_removes_and_spans_stay(self, load: Load, valid: str) -> None:
        child = "extends: base.yaml\nname: child\naudit: null\nclaims: [{kind: gdp, mu: 2}]\n"
        sampling = "{scheme: fixed, rate: null, batch_size: 64}"
        spec = only(load(f"mechanism: {{steps: 5, sampling: {sampling}}}\n{child}", base=valid))
        assert (spec.name, spec.audit) == ("child", None)
        assert (spec.mechanism["steps"], spec.mechanism["clip_norm"]) == (5, 1.0)
        assert spec.mechanism["sampling"] == {"scheme": "fixed", "batch_size": 64}
        assert [claim.kind for claim in spec.claims] == ["gdp"]
        assert spec.origin[("mechanism", "steps")] == Span("spec.yaml", 1, 20, 1, 21)
        assert spec.origin[("mechanism", "clip_norm")].file == "base.yaml"

    @pytest.mark.parametrize(
        ("extends", "code"),
        [
            ("spec.yaml", "extends-cycle"),
            ("loop.yaml", "extends-cycle"),
            ("/tmp/x.yaml", "bad-extends"),
            ("3", "bad-extends"),
            ("[a.yaml, b.yaml]", "bad-extends"),
            ('"\\ud800\\udc00"', "bad-character"),
            ("absent.yaml", "unreadable"),
            ('"."', "unreadable"),
        ],
    )
    def test_refused(self, load: Load, extends: str, code: str) -> None:
        loaded = load(f"dpspec: 1\nextends: {extends}\n", loop="extends: spec.yaml\n")
        assert [d.code for d in loaded.diagnostics] == [code]

    def test_a_key_that_a_parent_has_and_nobody_wants_can_be_dropped(self, load: Load, valid: str) -> None:
        (found,) = load("extends: old.yaml\n", old=f"{valid}\nzzz: 1\n").diagnostics
        assert found.help is not None
        assert found.help.endswith("; it is inherited: zzz: null in spec.yaml drops it")
        assert only(load("extends: old.yaml\nzzz: null\n", old=f"{valid}\nzzz: 1\n"))
        (own,) = load(f"{valid}\nzzz: 1\n").diagnostics
        assert "inherited" not in (own.help or "")

    def test_the_chain_has_a_limit(self, load: Load, valid: str) -> None:
        chain = {f"p{i}": f"extends: p{i + 1}.yaml\n" for i in range(1, 9)}
        assert only(load("extends: p2.yaml\n", **chain, p9=valid))
        assert told(load("extends: p1.yaml\n", **chain, p9=valid)) == [("extends-depth", 1, 10)]

    def test_a_parent_that_is_no_map(self, load: Load) -> None:
        assert [d.code for d in load("extends: base.yaml\n", base="[1]").diagnostics] == ["wrong-type"]


class TestSet:
    def test_later_overrides_win_maps_replace_null_removes_and_missing_blocks_appear(
        self, load: Load, valid: str
    ) -> None:
        text = valid.replace("training: {backend: native, learning_rate: 1}\n", "")
        overrides = ("training.learning_rate=0.25", "mechanism.steps=1", "mechanism.steps=2", "audit=null")
        spec = only(load(text, *overrides, "mechanism.sampling={scheme: full}", "description="))
        assert spec.training["learning_rate"] == 0.25
        assert (spec.mechanism["steps"], spec.mechanism["sampling"]) == (2, {"scheme": "full"})
        assert (spec.audit, spec.description) == (None, "")

    def test_claims_by_id_by_default_id_and_by_position(self, load: Load, valid: str) -> None:
        spec = only(load(valid, "claims.one.epsilon=9", "claims.claim-2.mu=8", "claims.0.delta=1e-3"))
        assert spec.claims[0].options == {"epsilon": 9.0, "delta": 1e-3}
        assert spec.claims[1]["mu"] == 8.0

    def test_the_span_is_in_the_command_line(self, load: Load, valid: str) -> None:
        spec = only(load(valid, "name=x", "mechanism.steps = 7"))
        assert spec.origin[("mechanism", "steps")] == Span("--set", 2, 19, 2, 20)

    @pytest.mark.parametrize(
        ("override", "column", "message"),
        [
            ("steps", 1, "--set needs PATH=VALUE, for example --set mechanism.steps=100; got 'steps'"),
            ("claims.onee.mu=3", 8, "no claim is called 'onee'; did you mean 'one'?"),
            ("claims.7.mu=3", 8, "no claim is called '7'"),
            ("threat_model.group_size.5=3", 25, "'threat_model.group_size' is a list without an item '5'"),
            ("name.first=x", 6, "'name' is a single value and has no 'first'"),
            ("mechanism..steps=x", 11, "'mechanism..steps' has an empty key between its dots"),
            ("extends=x.yaml", 1, "extends cannot be overridden: parents are merged before overrides"),
        ],
    )
    def test_paths_that_name_nothing(self, load: Load, valid: str, override: str, column: int, message: str) -> None:
        loaded = load(valid, override)
        assert told(loaded) == [("bad-path", 1, column)]
        assert loaded.diagnostics[0].message == message

    def test_broken_values(self, load: Load, valid: str) -> None:
        assert told(load(valid, "name=x", "mechanism.steps=[1")) == [("syntax", 2, 19)]
        assert told(load(valid, "mechanism.steps=!!int 3")) == [("tag", 1, 17)]

    def test_sources_hold_the_command_line(self, load: Load, valid: str) -> None:
        loaded = load(valid, "name=x", "description=a\nb")
        assert loaded.sources["--set"] == "name=x\ndescription=a b"


class TestMatrix:
    def test_product_of_axes(self, load: Load, valid: str) -> None:
        text = valid + "matrix: {mechanism.noise_multiplier: [1, 2.5], claims.one.epsilon: [3, 4]}\n"
        specs = load(text).specs
        assert [s.name for s in specs] == ["valid[1, 3]", "valid[1, 4]", "valid[2.5, 3]", "valid[2.5, 4]"]
        assert [s.mechanism["noise_multiplier"] for s in specs] == [1.0, 1.0, 2.5, 2.5]
        assert specs[1].cell == {"mechanism.noise_multiplier": 1, "claims.one.epsilon": 4}
        assert specs[1].claims[0]["epsilon"] == 4.0
        assert "matrix" not in specs[1].document
        assert len({s.digest for s in specs}) == 4

    def test_list_of_cells(self, load: Load, valid: str) -> None:
        text = valid + "matrix:\n- {mechanism.steps: 1}\n- {mechanism.steps: 2, data.size: 5}\n"
        specs = load(text).specs
        assert [s.name for s in specs] == ["valid[steps=1]", "valid[steps=2, size=5]"]
        assert [s.data["size"] for s in specs] == [10, 5]

    def test_long_names_become_numbers(self, load: Load, valid: str) -> None:
        long = ", ".join(f"[{i}, {'1, ' * 30}1]" for i in (1, 2))
        assert [s.name for s in load(valid + f"matrix: {{model.hidden: [{long}]}}\n").specs] == [
            "valid[#1]",
            "valid[#2]",
        ]

    def test_a_cell_lies_over_the_child_and_below_the_command_line(self, load: Load, valid: str) -> None:
        text = "extends: base.yaml\ndata: {size: 2}\nmatrix: {data.size: [3, 4]}\n"
        assert [s.data["size"] for s in load(text, base=valid).specs] == [3, 4]
        spec = only(load(text, "data.size=5", base=valid))
        assert (spec.data["size"], spec.name, spec.cell) == (5, "valid", {})

    def test_the_command_line_removes_an_axis_however_it_is_spelt(self, load: Load, valid: str) -> None:
        text = valid + "matrix: {claims.one.epsilon: [1, 2], data.size: [3, 4]}\n"
        loaded = load(text, "claims.0.epsilon=7")
        assert [s.name for s in loaded.specs] == ["valid[3]", "valid[4]"]
        assert {s.claims[0]["epsilon"] for s in loaded.specs} == {7.0}
        assert [s.name for s in load(text, "data={kind: toy}").specs] == ["valid[1]", "valid[2]"]
        assert len(load(text, "data.radius=1").specs) == 4

    def test_a_cell_is_called_by_what_the_command_line_put_inside_its_block(self, load: Load, valid: str) -> None:
        """It was called by the rate that its axis names, and audited at another."""
        rates = "{scheme: poisson, rate: 0.1}, {scheme: poisson, rate: 0.2}"
        text = valid + f"matrix: {{mechanism.sampling: [{rates}], data.size: [3, 4]}}\n"
        specs = load(text, "mechanism.sampling.rate=0.5").specs
        assert [dict(s.cell) for s in specs] == [
            {"mechanism.sampling": {"scheme": "poisson", "rate": 0.5}, "data.size": size} for size in (3, 4)
        ]
        assert all(s.mechanism["sampling"] == s.cell["mechanism.sampling"] for s in specs)
        assert all("0.5" in s.name for s in specs)

    def test_an_axis_over_a_map_that_each_phase_has_for_itself_is_refused(self, load: Load, valid: str) -> None:
        """Each of two cells was called by the rate of one phase, and both were the same training."""
        phases = ", ".join(f"{{steps: 5, sampling: {{scheme: poisson, rate: {rate}}}}}" for rate in (0.2, 0.3))
        text = re.sub(r"  steps: .*\n", f"  phases: [{phases}]\n", valid, count=1)
        assert load(text).ok
        axis = "matrix: {mechanism.sampling: [{scheme: poisson, rate: 0.2}, {scheme: poisson, rate: 0.3}]}\n"
        assert "'mechanism.sampling' is set but has no effect: each phase sets its own value" in {
            d.message for d in load(text + axis).diagnostics
        }

    @pytest.mark.parametrize("phases", ["[{steps: 5, clip_norm: 2}, {steps: 5, clip_norm: 3}]", FORMULA])
    def test_an_axis_that_each_phase_overrides_is_refused(self, load: Load, valid: str, phases: str) -> None:
        """Rows of a table were called by values that no phase had."""
        text = re.sub(r"  steps: .*\n", f"  phases: {phases}\n", valid, count=1)
        assert load(text).ok
        message = "'mechanism.clip_norm' is set but has no effect: each phase sets its own value"
        for loaded in (
            load(text + "matrix: {mechanism.clip_norm: [7, 8]}\n"),
            load(text + "matrix: {mechanism.clip_norm: [2, 3]}\n"),  # each is what some phase has, and none takes it
            load(text, "mechanism.clip_norm=7"),
        ):
            assert loaded.specs == ()
            assert {(d.code, d.message) for d in loaded.diagnostics} == {("conflicting-key", message)}

    def test_an_axis_that_some_phase_takes_from_the_block_is_none(self, load: Load, valid: str) -> None:
        phases = "[{steps: 5, clip_norm: 2}, {steps: 5}]"
        text = re.sub(r"  steps: .*\n", f"  phases: {phases}\n", valid, count=1)
        specs = load(text + "matrix: {mechanism.clip_norm: [7, 8]}\n").specs
        assert [[p["clip_norm"] for p in s.phases] for s in specs] == [[2.0, 7.0], [2.0, 8.0]]

    def test_the_command_line_may_replace_the_matrix(self, load: Load, valid: str) -> None:
        text = valid + "matrix: {data.size: [3, 4]}\n"
        assert [s.name for s in load(text, "matrix={data.size: [7]}").specs] == ["valid[7]"]
        assert only(load(text, "matrix=null")).name == "valid"

    def test_a_cell_may_remove(self, load: Load, valid: str) -> None:
        specs = load(valid + "matrix: [{audit: null}, {audit.seed: 3}]\n").specs
        assert [s.audit is None for s in specs] == [True, False]

    def test_an_error_in_one_cell_is_told_at_its_value(self, load: Load, valid: str) -> None:
        loaded = load(valid + "matrix: {mechanism.clip_norm: [1, -1, 2]}\n")
        assert told(loaded) == [("out-of-range", 28, 35)]

    def test_an_error_of_every_cell_is_told_once(self, load: Load, valid: str) -> None:
        text = valid.replace("clip_norm: 1.0", "clip_norm: -1") + "matrix: {data.size: [1, 2, 3]}\n"
        assert told(load(text)) == [("out-of-range", 8, 14)]

    @pytest.mark.parametrize(
        ("matrix", "message"),
        [
            ("3", "matrix must be a map or a list, got 3"),
            ("[]", "matrix must have at least 1 item, got 0"),
            ("{data.size: 3}", "data.size must be a list, got 3"),
            ("{data.size: []}", "data.size must have at least 1 item, got 0"),
            ("[3]", "matrix[0] must be a map, got 3"),
            ("[{}]", "matrix[0] must have at least 1 entry, got 0"),
            ("{data.size: [1, 1]}", "the matrix lists the same cell twice"),
            ("{name: [a, b]}", "'name' cannot vary over a matrix"),
        ],
    )
    def test_refused(self, load: Load, valid: str, matrix: str, message: str) -> None:
        loaded = load(valid + f"matrix: {matrix}\n")
        assert [d.message for d in loaded.diagnostics] == [message]
        assert all(d.span and d.span.line == 28 for d in loaded.diagnostics)

    def test_an_axis_without_a_place(self, load: Load, valid: str) -> None:
        loaded = load(valid + "matrix: {claims.oen.epsilon: [1, 2]}\n")
        assert told(loaded) == [("bad-path", 28, 17)]

    def test_the_number_of_cells_is_bounded(self, load: Load, valid: str) -> None:
        axis = ", ".join(str(i) for i in range(1, 34))
        text = valid + f"matrix: {{data.size: [{axis}], mechanism.steps: [{axis}]}}\n"
        loaded = load(text)
        assert [(d.code, d.message) for d in loaded.diagnostics] == [
            ("too-many-cells", "the matrix has 1089 cells; this spec may have 1000")
        ]
        many = ", ".join(["0"] * 5000)
        loaded = load(valid + f"matrix: {{data.x: [{many}], data.y: [{many}], data.z: [{many}]}}\n")
        assert [d.code for d in loaded.diagnostics] == ["too-many-cells"]
