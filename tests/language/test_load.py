import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from dpspec.contract import Audit, Span, Spec
from dpspec.contract.catalog import Catalog
from dpspec.errors import NothingToRunError, PluginError, SpecError
from dpspec.language import compose, load
from dpspec.language.load import Loaded, find_specs, from_document, is_spec, load_specs

Load = Callable[..., Loaded]


def digest(loaded: Loaded) -> str:
    (spec,) = loaded.specs
    return spec.digest


class TestDigest:
    def test_does_not_depend_on_spelling_composition_defaults_and_texts(self, load: Load, valid: str) -> None:
        before = digest(load(valid))
        head, body = valid.split("mechanism:\n")
        lines, rest = body.split("\n\n", 1)
        again = f"{rest}\n# a comment\n{head}mechanism:\n" + "\n".join(reversed(lines.split("\n"))) + "\n"
        named = valid.replace("name: valid", "name: valid\nrequires: [pytest]").replace("nothing wrong", "another text")
        for text in (
            again,
            valid.replace("1e-5", "0.00001").replace("epsilon: 3", "epsilon: 3.0"),
            named,
            valid + "matrix: {mechanism.noise_multiplier: [1.0]}\n",
            valid.replace("kind: toy", "kind: toy, size: 10").replace("seed: 7", "seed: 7\n  runs: 1"),
        ):
            assert digest(load(text)) == before
        assert digest(load("extends: base.yaml\n", base=valid)) == before
        assert digest(load(valid.replace("steps: 100", "steps: 7"), "mechanism.steps=100")) == before

    def test_facts_for_statements_change_neither_digest_nor_trials(self, load: Load, valid: str) -> None:
        answers = "kind: toy, collection: {name: Visits of 2024, source: one clinic}"
        stated = valid.replace("kind: toy", answers) + "deployment: {trust_model: federated, operator: A. Person}\n"
        (spec,), (bare,) = load(stated).specs, load(valid).specs
        assert (spec.digest, spec.data) == (bare.digest, bare.data)
        assert spec.document["data"]["collection"]["name"] == "Visits of 2024"
        assert Audit.trial_inputs(None, spec) == Audit.trial_inputs(None, bare)  # type: ignore[arg-type]

    @pytest.mark.parametrize("change", ["mechanism.steps=99", "claims.one.epsilon=3.5", "audit.seed=8", "name=other"])
    def test_sees_everything_else(self, load: Load, valid: str, change: str) -> None:
        assert digest(load(valid, change)) != digest(load(valid))

    def test_is_the_same_tomorrow(self, load: Load, valid: str) -> None:
        assert digest(load(valid)) == "828a5a0e2669a0f7ea04171802d01dff8fb1334de65460aa1859140af5e71fc9"


class TestFromDocument:
    def test_rebuilds_an_equal_spec(self, load: Load, valid: str, catalog: Catalog) -> None:
        phases = valid.replace("steps: 100", "phases: [{steps: 1}, {steps: 2, noise_multiplier: 2}]")
        for spec in (*load(valid + "matrix: {data.size: [3, 4]}\n").specs, *load(phases).specs):
            document = json.loads(json.dumps(spec.to_json()))
            again = from_document(document, catalog, spec.directory, name=spec.name, cell=spec.cell)
            assert again == spec
            assert hash(again) == hash(spec)

    def test_raises_what_is_wrong(self, load: Load, valid: str, catalog: Catalog) -> None:
        document = load(valid).specs[0].to_json()
        with pytest.raises(SpecError, match="steps must be at least 1"):
            from_document({**document, "mechanism": {**document["mechanism"], "steps": 0}}, catalog)
        with pytest.raises(PluginError, match="'gone'"):
            from_document({**document, "mechanism": {**document["mechanism"], "kind": "gone"}}, catalog)


def test_directories_are_those_of_the_files(load: Load, valid: str, catalog: Catalog, tmp_path: Path) -> None:
    load(valid)
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "child.yaml").write_text("extends: ../spec.yaml\n")
    (spec,) = load_specs([folder / "child.yaml"], catalog).specs
    assert spec.directory == str(folder)
    assert spec.origin[("name",)].file == str(tmp_path / "spec.yaml")


def write(path: Path, text: str = "dpspec: 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_spec_below_is_found_in_order_and_the_rest_is_told(tmp_path: Path) -> None:
    b, a = write(tmp_path / "b.yaml"), write(tmp_path / "a" / "z.yml")
    parent = write(tmp_path / "a" / "parent.yaml", "name: parent\nlist:\n  - dpspec: 1\n")
    write(tmp_path / "expected.txt")
    for hidden in (".dpspec/store/x.yaml", ".git/x.yaml", "a/.x.yaml", "venv/lib/x.yaml"):
        write(tmp_path / hidden)
    write(tmp_path / "venv" / "pyvenv.cfg", "")
    assert find_specs([tmp_path]) == ((a, b), (parent,))


def test_files_are_taken_as_given_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s" / "a.yaml")
    write(tmp_path / "s" / "b.yaml")
    given = [Path("s/b.yaml"), Path("s"), Path("s/../s/a.yaml"), Path("absent.yaml"), Path("s/b.yaml")]
    assert find_specs(given)[0] == (Path("s/b.yaml"), Path("s/a.yaml"), Path("absent.yaml"))
    other = write(tmp_path / "none.yaml", "a: 1\n")
    assert find_specs([other])[0] == (other,)  # who names a file means it


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("# a comment\n\ndpspec: 1\n", True),
        ("name: a\n'dpspec' : 1\n", True),
        ("\ufeffdpspec: 1\n", True),
        ("{dpspec: 1, name: a}\n", True),
        ("name: a\ndpspec: {broken\n", True),  # errors in a spec are reported, not ignored
        ("dpspecs: 1\n", True),  # a misspelled key is an error, not another file
        ("name: a\ndpsec: 1\n", True),
        ("services: {}\nspec: 1\nspecs: 2\n", False),
        ("deep:\n  dpspec: 1\n", False),
        ("", False),
    ],
)
def test_a_spec_is_told_by_its_key(tmp_path: Path, text: str, spec: bool) -> None:
    assert is_spec(write(tmp_path / "a.yaml", text)) is spec


def test_what_cannot_be_read_is_no_spec(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert not any(is_spec(path) for path in tmp_path.iterdir())
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    spec = write(tmp_path / "a.yaml")
    assert find_specs([tmp_path])[0] == (spec,)


def test_what_we_may_not_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, closed = write(tmp_path / "a.yaml"), write(tmp_path / "closed.yaml")

    def refused(path: Path, mode: str) -> IO[bytes]:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return path.open("rb")

    monkeypatch.setattr(load, "open", refused, raising=False)
    assert find_specs([tmp_path])[0] == (spec, closed)


def test_a_folder_without_a_spec_is_refused_and_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NothingToRunError, match="it has no YAML files; for a recording, use `dpspec check`"):
        find_specs([tmp_path])
    write(tmp_path / "a.yaml", "name: a\n")
    write(tmp_path / "b.yaml", "name: b\n")
    with pytest.raises(NothingToRunError, match="none of its 2 YAML files has a top-level key 'dpspec'"):
        load_specs([tmp_path], Catalog())


def only(loaded: Loaded) -> Spec:
    assert loaded.diagnostics == ()
    (spec,) = loaded.specs
    return spec


def places_of(loaded: Loaded) -> list[tuple[str, int, int]]:
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
            ("[a.yaml, b.yaml]", "bad-extends"),
            ('"\\ud800\\udc00"', "bad-character"),
            ("absent.yaml", "unreadable"),
            ("../../../../../../../../../etc/passwd", "bad-extends"),
        ],
    )
    def test_refused(self, load: Load, extends: str, code: str) -> None:
        loaded = load(f"dpspec: 1\nextends: {extends}\n", loop="extends: spec.yaml\n")
        assert [d.code for d in loaded.diagnostics] == [code]

    def test_the_chain_has_a_limit(self, load: Load, valid: str) -> None:
        chain = {f"p{i}": f"extends: p{i + 1}.yaml\n" for i in range(1, 9)}
        assert only(load("extends: p2.yaml\n", **chain, p9=valid))
        assert places_of(load("extends: p1.yaml\n", **chain, p9=valid)) == [("extends-depth", 1, 10)]

    def test_a_parent_that_is_no_map(self, load: Load) -> None:
        assert [d.code for d in load("extends: base.yaml\n", base="[1]").diagnostics] == ["wrong-type"]


class TestSet:
    def test_later_overrides_win_maps_replace_null_removes_and_missing_blocks_appear(self, load, valid):
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
        assert places_of(loaded) == [("bad-path", 1, column)]
        assert loaded.diagnostics[0].message == message

    def test_broken_values(self, load: Load, valid: str) -> None:
        assert places_of(load(valid, "name=x", "mechanism.steps=[1")) == [("syntax", 2, 19)]
        assert places_of(load(valid, "mechanism.steps=!!int 3")) == [("tag", 1, 17)]

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
        loaded = load(text, "data.size=5", base=valid)
        (spec,) = loaded.specs
        assert [(d.code, d.severity) for d in loaded.diagnostics] == [("axis-replaced", "warning")]
        assert (spec.data["size"], spec.name, spec.cell) == (5, "valid", {})

    def test_the_command_line_sets_the_values_of_an_axis(self, load: Load, valid: str) -> None:
        text = valid + "matrix: {data.size: [3, 4]}\n"
        loaded = load(text, "matrix.data.size=[5, 6, 7]")
        assert [spec.data["size"] for spec in loaded.specs] == [5, 6, 7]
        assert loaded.diagnostics == ()
        assert len(load(text, "matrix.mechanism.steps=[10, 20]").specs) == 4

    def test_the_command_line_removes_an_axis_however_it_is_spelt(self, load: Load, valid: str) -> None:
        text = valid + "matrix: {claims.one.epsilon: [1, 2], data.size: [3, 4]}\n"
        loaded = load(text, "claims.0.epsilon=7")
        assert [s.name for s in loaded.specs] == ["valid[3]", "valid[4]"]
        assert {s.claims[0]["epsilon"] for s in loaded.specs} == {7.0}
        assert [s.name for s in load(text, "data={kind: toy}").specs] == ["valid[1]", "valid[2]"]
        assert len(load(text, "data.radius=1").specs) == 4

    def test_a_cell_is_called_by_what_the_command_line_put_inside_its_block(self, load: Load, valid: str) -> None:
        rates = "{scheme: poisson, rate: 0.1}, {scheme: poisson, rate: 0.2}"
        text = valid + f"matrix: {{mechanism.sampling: [{rates}], data.size: [3, 4]}}\n"
        specs = load(text, "mechanism.sampling.rate=0.5").specs
        assert [dict(s.cell) for s in specs] == [
            {"mechanism.sampling": {"scheme": "poisson", "rate": 0.5}, "data.size": size} for size in (3, 4)
        ]
        assert all(s.mechanism["sampling"] == s.cell["mechanism.sampling"] for s in specs)
        assert all("0.5" in s.name for s in specs)

    @pytest.mark.parametrize(
        ("key", "values"),
        [
            ("clip_norm", ("7", "8")),
            ("clip_norm", ("2", "3")),  # each is what some phase has, and none takes it
            ("sampling", ("{scheme: poisson, rate: 0.2}", "{scheme: poisson, rate: 0.3}")),
        ],
    )
    def test_a_value_that_each_phase_overrides_is_refused(self, load, valid, key, values):
        own = values if key == "sampling" else ("2", "3")
        phases = ", ".join(f"{{steps: 5, {key}: {value}}}" for value in own)
        text = re.sub(r"  steps: .*\n", f"  phases: [{phases}]\n", valid, count=1)
        assert load(text).ok
        message = f"'mechanism.{key}' is set but has no effect: each phase sets its own value"
        axis = f"matrix: {{mechanism.{key}: [{', '.join(values)}]}}\n"
        for loaded in (load(text + axis), load(text, f"mechanism.{key}={values[0]}")):
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
        assert places_of(loaded) == [("out-of-range", 28, 35)]

    def test_an_error_of_every_cell_is_told_once(self, load: Load, valid: str) -> None:
        text = valid.replace("clip_norm: 1.0", "clip_norm: -1") + "matrix: {data.size: [1, 2, 3]}\n"
        assert places_of(load(text)) == [("out-of-range", 8, 14)]

    @pytest.mark.parametrize(
        ("matrix", "message"),
        [
            ("3", "matrix must be a map or a list, got 3"),
            ("[]", "matrix must have at least 1 item, got 0"),
            ("{data.size: 3}", "data.size must be a list, got 3"),
            ("[{}]", "matrix[0] must have at least 1 entry, got 0"),
            ("{data.size: [1, 1]}", "the matrix lists the same cell twice"),
            ("{name: [a, b]}", "'name' cannot vary over a matrix"),
        ],
    )
    def test_refused(self, load: Load, valid: str, matrix: str, message: str) -> None:
        loaded = load(valid + f"matrix: {matrix}\n")
        assert [d.message for d in loaded.diagnostics] == [message]
        assert all(d.span and d.span.line == 28 for d in loaded.diagnostics)

    @pytest.mark.ci
    def test_the_number_of_cells_is_bounded(self, load: Load, valid: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert (compose.MAX_CELLS, compose.MAX_BOUNDED_CELLS) == (1000, 10_000)
        monkeypatch.setattr(compose, "MAX_CELLS", 10)
        monkeypatch.setattr(compose, "MAX_BOUNDED_CELLS", 20)
        text = valid + "matrix: {data.size: [1, 2, 3, 4], mechanism.steps: [1, 2, 3, 4]}\n"
        loaded = load(text)
        assert [(d.code, d.message) for d in loaded.diagnostics] == [
            ("too-many-cells", "the matrix has 16 cells; this spec may have 10")
        ]
        bounds = text.partition("audit:\n")[0]
        assert len(load(bounds + text[text.index("matrix:") :]).specs) == 16
        line = ", ".join(str(i) for i in range(1, 22))
        loaded = load(bounds + f"matrix: {{mechanism.steps: [{line}]}}\n")
        assert [d.message for d in loaded.diagnostics] == ["the matrix has 21 cells; this spec may have 20"]
        many = ", ".join(["0"] * 5000)
        loaded = load(valid + f"matrix: {{data.x: [{many}], data.y: [{many}], data.z: [{many}]}}\n")
        assert [d.code for d in loaded.diagnostics] == ["too-many-cells"]
