"""The commands that read specs or write the first ones, as a user types them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from support import counting as support

from dpspec.contract.catalog import BrokenPlugin
from dpspec.language.load import load_specs
from dpspec.registry import loader
from dpspec.reporters.labels import VERDICTS


def test_validate_counts(dpspec, counting):
    assert dpspec("validate", counting).out == "1 spec valid\n"
    assert dpspec("validate", counting, counting).out == "1 spec valid\n"
    other = counting.with_name("other.yaml")
    other.write_text(counting.read_text("utf-8"), encoding="utf-8")
    assert dpspec("validate", counting, other).out == "2 specs valid\n"
    matrix = "\nmatrix: {mechanism.epsilon: [1.0, 1.1, 1.2]}\n"
    counting.write_text(support.EXAMPLE + matrix, encoding="utf-8")
    assert dpspec("validate", counting).out == "1 spec valid (3 audits with their matrix cells)\n"


def test_validate_warns_of_a_control_that_theory_decides(dpspec, tmp_path):
    file = tmp_path / "controlled.yaml"
    file.write_text(
        "dpspec: 1\nname: controlled\n"
        "mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 4}\n"
        "data: {kind: synthetic, pattern: blobs, records: 60, features: 40, classes: 2}\n"
        "model: {kind: linear}\n"
        "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 20}, seed: 3}\n"
        "claims: [{id: low, kind: approx-dp, epsilon: 1.0, delta: 1e-5, expect: refuted}]\n",
        encoding="utf-8",
    )
    ended = dpspec("validate", file)
    assert ended.code == 0
    assert "controlled.yaml:7:" in ended.out
    assert "warning[control-without-attack]: claim 'low' is refuted without the attack" in ended.out
    assert ended.out.endswith("1 spec valid\n")


def test_show_reads_back_to_the_same_spec(dpspec, counting, tmp_path):
    shown = dpspec("show", counting, "--set", "mechanism.epsilon=1e-3").out
    (tmp_path / "shown.yaml").write_text(shown, encoding="utf-8")
    catalog = loader.load_catalog()
    (first,) = load_specs([counting], catalog, ["mechanism.epsilon=1e-3"]).specs
    (second,) = load_specs([tmp_path / "shown.yaml"], catalog).specs
    assert first.digest == second.digest


def test_show_says_where_values_come_from(dpspec, counting):
    lines = dpspec("show", counting, "--origin", "--set", "audit.seed=4").out.split("\n")
    assert any(line.startswith("name: coin ") and line.endswith(f"# {counting}:2:7") for line in lines)
    assert any(line.startswith("  seed: 4 ") and line.endswith("# --set:1:12") for line in lines)
    assert any(line.startswith("  backend: native ") and line.endswith("# default") for line in lines)


@pytest.mark.parametrize(
    ("word", "begin", "within", "absent"),
    [
        ("unknown-key", "unknown-key: ", (), ()),
        ("threat_model.adjacency", "threat_model.adjacency\n    add-remove | replace-one | zero-out", (), ()),
        ("digits", "data kind digits, by dpspec ", (), ()),
        ("json", "report format json, by dpspec ", (), ()),
        ("orthogonal", "canary orthogonal, by dpspec ", ("Space gradient",), ()),
        ("likelihood-ratio", "score likelihood-ratio, by dpspec ", ("It learns from half of the canaries",), ()),
        ("shadow", "", ("It trains 32 additional models per run",), ()),
        ("csv", "", ("    data.label: string, not empty; required\n        The column of labels.\n",), ()),
        ("group", "", ("    mechanism.sampling.rate: number, above 0, at most 1\n",), ("mechanism.phases.steps",)),
        ("approx-dp", "claim kind approx-dp\n\n    claims.id: ", ("    claims.epsilon: ",), ()),
        ("audit", "audit\n", ("    audit.method: one-run | many-run; required\n",), ("audit.canary.space",)),
        ("claims", "", (), ("any value",)),
        ("data", "", (), ("data.path",)),
        ("replace-one", "", ("threat_model.adjacency\n", "claims.adjacency\n"), ()),
        ("mechanism.noise_multiplier", "", ("where mechanism.kind is group",), ()),
        *((verdict, f"verdict {verdict}\n    ", (), ()) for verdict in VERDICTS),
    ],
)
def test_explain(dpspec, word, begin, within, absent):
    ended = dpspec("explain", word)
    assert ended.code == 0
    assert ended.out.startswith(begin)
    assert all(ended.out.count(text) == 1 for text in within)
    assert not any(text in ended.out for text in absent)
    assert all(len(line) <= 80 for line in ended.out.split("\n"))


def test_explain_all_verdicts_and_unknown_words(dpspec):
    out = dpspec("explain", "verdicts").out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("verdict ")] == list(VERDICTS)
    ended = dpspec("explain", "unknwon-key")
    assert (ended.code, ended.out) == (2, "")
    message = "unknown code, key, kind, choice or name in a report 'unknwon-key'; did you mean 'unknown-key'"
    assert message in ended.err
    assert "did you mean 'orthogonal'?" in dpspec("explain", "ortogonal").err
    assert "did you mean 'unmixed-batches'" in dpspec("explain", "unmixed-batch").err
    assert dpspec("explain", "foo").err == "error: unknown code, key, kind, choice or name in a report 'foo'\n"


def test_schema(dpspec, tmp_path):
    printed = json.loads(dpspec("schema").out)
    assert printed["properties"]["mechanism"]
    ended = dpspec("schema", "--output", "s.json")
    assert (ended.code, ended.out) == (0, "")
    assert json.loads((tmp_path / "s.json").read_text("utf-8")) == printed
    assert json.loads(dpspec("schema", "--result").out)["$id"] == "dpspec/result/v2"


@pytest.fixture
def broken(monkeypatch):
    plugin = BrokenPlugin(
        plugin="x\x1b[31m",
        distribution="dpspec-x",
        version="0.1.0",
        reason="ImportError: no module 'y'",
        kinds=("gone",),
    )
    catalog = dataclasses.replace(loader.load_catalog(), broken=(plugin,))
    monkeypatch.setattr(loader, "load_catalog", lambda: catalog)


def test_plugins_as_a_table(dpspec, broken):
    ended = dpspec("plugins")
    assert ended.code == 0
    assert "mechanisms\n  group  " in ended.out
    assert (
        "broken (only specs that need them fail)\n  x\\x1b[31m  ImportError: no module 'y'  dpspec-x 0.1.0" in ended.out
    )
    assert all(len(line) <= 80 for line in ended.out.split("\n"))


def test_plugins_as_json(dpspec, broken):
    document = json.loads(dpspec("plugins", "--json").out)
    families = {"mechanisms", "datasets", "models", "backends", "reporters", "executors", "canaries", "scores"}
    assert set(document) == {*families, "broken"}
    (group,) = [entry for entry in document["mechanisms"] if entry["name"] == "group"]
    assert set(group) == {"name", "summary", "plugin", "distribution", "version"}
    (found,) = document["broken"]
    assert (found["plugin"], found["reason"], found["kinds"]) == ("x\x1b[31m", "ImportError: no module 'y'", ["gone"])


def test_init_writes_a_spec_that_is_valid_and_overwrites_nothing(dpspec, tmp_path):
    ended = dpspec("init")
    assert ended.code == 0
    assert dpspec("validate", "specs/first.yaml").code == 0
    spec = tmp_path / "specs" / "first.yaml"
    assert spec.read_text("utf-8").startswith("# yaml-language-server: $schema=../.dpspec/spec.schema.json\n")
    assert (spec.parent / "../.dpspec/spec.schema.json").is_file()
    spec.write_text("mine", encoding="utf-8")
    ended = dpspec("init")
    assert ended.code == 0
    assert "kept  specs/first.yaml (already exists)" in ended.out
    assert spec.read_text("utf-8") == "mine"


def test_init_elsewhere_and_of_a_mechanism(dpspec, tmp_path, counting):
    assert dpspec("init", "project", "--mechanism", "counting").code == 0
    assert "kind: counting" in (tmp_path / "project" / "specs" / "first.yaml").read_text("utf-8")
    ended = dpspec("init", "other", "--mechanism", "countin")
    assert ended.code == 2
    assert "unknown mechanism 'countin'; did you mean 'counting'? (installed: counting)" in ended.err


def test_new_spec(dpspec, tmp_path, counting):
    dpspec("init")
    ended = dpspec("new", "spec", "mine", "--in", "specs")
    assert ended.code == 0
    text = (tmp_path / "specs" / "mine.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=../.dpspec/spec.schema.json\n")
    assert "\nname: mine\n" in text
    assert dpspec("validate", "specs/mine.yaml").code == 0
    assert dpspec("new", "spec", "mine", "--in", "specs").code == 2
    assert dpspec("new", "spec", "../mine").code == 2


def test_new_plugin(dpspec, tmp_path):
    ended = dpspec("new", "plugin", "demo-kind")
    assert ended.code == 0, ended.err
    assert (tmp_path / "dpspec-demo-kind" / "pyproject.toml").is_file()
    assert "pip install -e 'dpspec-demo-kind[test]'" in ended.out
    assert "dpspec run dpspec-demo-kind/dpspec_demo_kind/example.yaml" in ended.out
    assert dpspec("new", "plugin", "demo-kind").code == 2
    assert dpspec("new", "plugin", "No Name").code == 2


def test_no_arguments_show_the_help(dpspec):
    ended = dpspec()
    assert ended.code == 2
    assert "Commands:" in ended.err
    assert "[OPTIONS] COMMAND" in ended.err
