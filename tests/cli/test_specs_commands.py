"""The commands that read specs or write the first ones, as a user types them."""

import dataclasses
import json
import shlex

import pytest
from support import counting as support

from dpspec.cli.explain import keys
from dpspec.contract.catalog import BrokenPlugin
from dpspec.language.blocks import reference
from dpspec.language.load import load_specs
from dpspec.registry import loader
from dpspec.registry.loader import load_catalog
from dpspec.reporters.words import VERDICTS


def test_validate_counts(dpspec, counting):
    assert dpspec("validate", counting).out == "1 spec valid\n"
    assert dpspec("validate", counting, counting).out == "1 spec valid\n"
    other = counting.with_name("other.yaml")
    other.write_text(counting.read_text("utf-8"), encoding="utf-8")
    assert dpspec("validate", counting, other).out == "2 specs valid\n"
    matrix = "\nmatrix: {mechanism.epsilon: [1.0, 1.1, 1.2]}\n"
    counting.write_text(support.EXAMPLE + matrix, encoding="utf-8")
    assert dpspec("validate", counting).out == "1 spec valid (3 audits with their matrix cells)\n"


def test_show_reads_back_to_the_same_spec(dpspec, counting, tmp_path):
    shown = dpspec("show", counting, "--set", "mechanism.epsilon=1e-3").out
    (tmp_path / "shown.yaml").write_text(shown, encoding="utf-8")
    catalog = loader.load_catalog()
    (first,) = load_specs([counting], catalog, ["mechanism.epsilon=1e-3"]).specs
    (second,) = load_specs([tmp_path / "shown.yaml"], catalog).specs
    assert first.digest == second.digest


@pytest.mark.family
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
        ("group", "", ("    mechanism.sampling.rate: number, at least 1e-30",), ("mechanism.phases.steps",)),
        ("approx-dp", "claim kind approx-dp\n\n    claims.id: ", ("    claims.epsilon: ",), ()),
        ("audit", "audit\n", ("    audit.method: one-run | many-run; required\n",), ("audit.canary.space",)),
        ("claims", "", (), ("any value",)),
        ("data", "", (), ("data.path",)),
        ("mechanism.noise_multiplier", "", ("where mechanism.kind is group",), ()),
        ("claims.ID.kappa", "claims.kappa\n", (), ()),
        ("claims[0].epsilon", "claims.epsilon\n", (), ()),
        ("matrix.mechanism.steps", "mechanism.steps\n", (), ()),
        ("interval", "term interval\n", (), ()),
        ("replace-one", "replace-one, a value of threat_model.adjacency\n    add-remove | replace-one", (), ()),
        ("e-value", "e-value, a value of audit.stop\n", (), ()),
        ("conformance", "term conformance\n", (), ()),
        ("one-record", "assumption one-record\n    Each index of the dataset is one record, the rows of a", (), ()),
        ("noise-scale", "check noise-scale\n", (), ()),
        ("model-state", "channel model-state\n    Channel by which records can reach a recorded model", (), ()),
        ("guessable-seed", "rule guessable-seed\n    Caution about a recorded run: a generator of torch", (), ()),
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


@pytest.mark.ci
def test_explain_all_verdicts_and_unknown_words(dpspec):
    out = dpspec("explain", "verdicts").out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("verdict ")] == list(VERDICTS)
    ended = dpspec("explain", "unknwon-key")
    assert (ended.code, ended.out) == (2, "")
    message = "unknown code, key, kind or name in a report 'unknwon-key'; did you mean 'unknown-key'"
    assert message in ended.err
    assert "did you mean 'orthogonal'?" in dpspec("explain", "ortogonal").err
    assert "did you mean 'unmixed-batches'" in dpspec("explain", "unmixed-batch").err
    unknown = "error: unknown code, key, kind or name in a report 'foo': `dpspec plugins` lists kinds, "
    assert dpspec("explain", "foo").err.startswith(unknown)


def test_schema(dpspec):
    printed = json.loads(dpspec("schema").out)
    assert printed["properties"]["mechanism"]
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
    assert "mechanisms\n  composition  " in ended.out
    assert (
        "broken (only specs that need them fail)\n  x\\x1b[31m  ImportError: no module 'y'  dpspec-x 0.1.0" in ended.out
    )
    assert all(len(line) <= 80 for line in ended.out.split("\n"))


def test_new_spec(dpspec, tmp_path, counting):
    assert dpspec("new", "spec", "first").code == 0
    assert (tmp_path / ".dpspec/spec.schema.json").is_file()
    ended = dpspec("new", "spec", "mine", "--in", "specs", "--mechanism", "counting")
    assert ended.code == 0
    text = (tmp_path / "specs" / "mine.yaml").read_text("utf-8")
    assert text.startswith("# yaml-language-server: $schema=../.dpspec/spec.schema.json\n")
    assert "kind: counting" in text
    assert "\nname: mine\n" in text
    assert dpspec("validate", "specs/mine.yaml").code == 0
    assert dpspec("new", "spec", "mine", "--in", "specs").code == 2
    assert "specs/mine.yaml already exists" in dpspec("new", "spec", "mine.yaml", "--in", "specs").err
    assert dpspec("new", "spec", "../mine").code == 2
    ended = dpspec("new", "spec", "other", "--mechanism", "countin")
    assert ended.code == 2
    assert "unknown mechanism 'countin'; did you mean 'counting'? (installed: counting)" in ended.err
    assert "[tool.dpspec]" in dpspec("new", "spec", "other", "--model", "mynet").err


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


def test_a_choice_that_makes_no_difference_is_not_mentioned() -> None:
    known = keys(reference(load_catalog()))
    where = {path: [key.where for key in known if key.path == f"claims.{path}"] for path in ("id", "epsilon", "points")}
    assert where == {
        "id": [""],
        "epsilon": ["claims.kind is approx-dp, pure-dp or per-instance-dp", "claims.kind is renyi-dp"],
        "points": ["claims.kind is tradeoff"],
    }


VARY = ("--vary", "mechanism.epsilon")


def folded(text: str) -> str:
    return " ".join(text.split())


def test_the_text(dpspec, counting):
    ended = dpspec("calibrate", counting, *VARY, "--precision", "0.01")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.split("\n")[0] == "coin"
    text = folded(ended.out)
    assert (
        "is the maximum found that proves held: - held (epsilon <= 1.5 at delta = 1e-6): epsilon <= 1.5 is proved"
        in text
    )
    assert "does not: - held (epsilon <= 1.5 at delta = 1e-6): only epsilon <= 1.51" in text
    assert "This applies to the declared mechanism." in text
    assert all(len(line) <= 80 for line in ended.out.split("\n") if "dpspec run" not in line)
    assert support.RAN == []


def test_the_command_shown_can_be_run_and_confirms(dpspec, counting):
    ended = dpspec("calibrate", counting, *VARY, "--set", "mechanism.epsilon=9", "--set", "claims.held.epsilon=0.7")
    shown = ended.out.partition("To use it:")[2].partition("\n\n")[0].replace("\\\n", " ")
    program, *command = shlex.split(shown)
    assert program == "dpspec"
    assert command.count("--set") == 2
    again = dpspec(*command, "--bounds-only", "--set", "claims.broken.expect=open")
    assert again.code == 0, again.out
    assert "PROVED        held: epsilon <= 0.7 at delta = 1e-6; at most 0.7" in again.out


def test_no_value_proves_the_claims(dpspec, counting):
    ended = dpspec("calibrate", counting, "--vary", "claims.held.epsilon", "--set", "claims.held.over=collection")
    assert ended.code == 0, ended.err
    ended = dpspec("calibrate", counting, *VARY, "--set", "claims.held.adjacency=replace-one")
    assert (ended.code, ended.err) == (1, "")
    text = folded(ended.out)
    assert "No tried value of mechanism.epsilon proves held." in text
    assert "no proved upper bound applies to this claim" in text
    assert "To use it" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "mechanism.epsilno"], "did you mean 'mechanism.epsilon'?"),
        (["--vary", "mechanism.kind"], "is not a number"),
        ([*VARY, "--claim", "hold"], "did you mean 'held'?"),
        ([*VARY, "--precision", "0"], "--precision must be above 0 and below 1, got 0.0"),
        ([*VARY, "--precision", "1"], "--precision must be above 0 and below 1, got 1.0"),
        (["--vary", "mechanism.factor"], "does not depend on mechanism.factor"),
    ],
)
def test_usage(dpspec, counting, arguments, message):
    ended = dpspec("calibrate", counting, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_values_that_rest_on_the_data_stay_inside(dpspec, counting, monkeypatch):
    bound = support.CountingAudit.bound

    def of_data(*given):
        return (dataclasses.replace(finding, privacy="data-dependent") for finding in bound(*given))

    monkeypatch.setattr(support.CountingAudit, "bound", of_data)
    ended = dpspec("calibrate", counting, *VARY)
    assert (ended.code, ended.out) == (2, "")
    assert "depends on the data" in ended.err
    assert "1.5" not in ended.err
    assert dpspec("calibrate", counting, *VARY, "--internal").code == 0
