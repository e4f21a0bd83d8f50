"""Common first mistakes with a user's table give an error with its location and a fix."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SPEC = """\
dpspec: 1
name: patients
mechanism: {kind: group, noise_multiplier: 1.5, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 5}
data:
  kind: csv
  path: patients.csv
  label: readmitted
  classes: [no, yes]
model: {kind: mlp, hidden: [8]}
training: {learning_rate: 0.5}
claims:
  - {id: one, kind: approx-dp, epsilon: 5, delta: 1e-5}
audit: {method: one-run, canary: {count: 8}, seed: 1}
"""
TABLE = "age,smoker,visits,readmitted\n51,yes,3,no\n,no,0,yes\n40,,2,no\n" + "33,no,1,yes\n" * 40


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "patients.csv").write_text(TABLE, encoding="utf-8")
    path = tmp_path / "patients.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("overrides", "place", "says"),
    [
        (["data.path=patient.csv"], "--set:1:11", "no such file; did you mean 'patients.csv'?"),
        (["data.label=readmited"], "--set:1:12", "no column 'readmited'; did you mean 'readmitted'?"),
        (["data.columns=[age, vists]"], "--set:1:14", "no column 'vists'; did you mean 'visits'?"),
        (["data.categories={smokr: [yes, no]}"], "--set:1:17", "no column 'smokr'; did you mean 'smoker'?"),
        (["data.columns=[smoker]"], "patients.yaml:6:9", "declare the values of a categorical"),
        (["data.columns=[age]"], "patients.yaml:6:9", "replace missing values by a public constant"),
        (["data.columns=[smoker]", "data.categories={smoker: [yes, no]}"], "--set:2:17", 'add "" for missing values'),
        (["data.missing=['']"], "--set:1:14", "'group' takes no records with missing values"),
        (
            ["data.columns=[visits]", "data.classes=[no, maybe]"],
            "--set:2:14",
            "the label is not a declared class (no, maybe)",
        ),
        (["data.classes=[no,"], "--set:1:18", "quote the argument if it has spaces: --set 'data.classes=...'"),
        (["threat_model.unit=person"], "--set:1:19", "for one record or user, not for one 'person'"),
    ],
)
def test_a_table_of_one_s_own(dpspec, table, overrides, place, says):
    ended = dpspec("run", table.name, *(word for text in overrides for word in ("--set", text)))
    assert ended.code == 3
    assert f"{place}: error[" in ended.err
    assert says in " ".join(ended.err.split())


@pytest.mark.family
@pytest.mark.parametrize(
    ("pipeline", "codes"),
    [("[{imput: mean}]", ["unknown-key"]), ("[{trim: 1}]", ["missing-key"]), ("{impute: mean}", ["wrong-type"])],
)
def test_a_step_of_pre_processing_is_told_once(dpspec: Callable[..., object], pipeline: str, codes: list[str]) -> None:
    dpspec("new", "spec", "mine", "--mechanism", "preprocessing")
    ended = dpspec("validate", "mine.yaml", "--set", f"mechanism.pipeline={pipeline}")
    assert [line.split("error[")[1].split("]")[0] for line in ended.out.splitlines() if "error[" in line] == codes
    if codes == ["missing-key"]:
        assert "mechanism.pipeline[0] needs one of impute, deduplicate, quantise, pca, dp-pca, scale" in ended.out
    if codes == ["wrong-type"]:
        assert "write pipeline: [{...}]" in ended.out


def test_arithmetic_that_fails_is_an_error_of_the_spec(dpspec, monkeypatch):
    def overflow(*given: object, **named: object) -> None:
        raise OverflowError("math range error")

    monkeypatch.setattr("dpspec_group.theory.group_epsilons", overflow)
    dpspec("new", "spec", "mine", "--mechanism", "group")
    ended = dpspec("run", "mine.yaml", "--bounds-only")
    assert (ended.code, ended.out) == (3, "")
    assert "error[out-of-range]: bounds cannot be computed in floating point: math range error" in ended.err


PARAMETERS = """\
dpspec: 1
name: bad
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.01}
  steps: 10
data: {kind: declared, records: 100}
threat_model:
  group_size: [1, 4]
claims:
  - {id: one, kind: approx-dp, epsilon: 3.0, delta: 1e-6}
  - {id: four, kind: approx-dp, epsilon: 9.0, delta: 1e-6, group_size: 4}
"""


@pytest.mark.parametrize("command", [("validate",), ("run",), ("calibrate", "--vary", "claims.one.epsilon")])
def test_an_error_of_preparation_has_its_place_in_every_command(dpspec, tmp_path, command):
    path = tmp_path / "bad.yaml"
    path.write_text(PARAMETERS.replace("[1, 4]", "[1, 4, 101]"), encoding="utf-8")
    ended = dpspec(*command, path)
    output = ended.out if command == ("validate",) else ended.err
    assert ended.code == 3
    assert f"{path}:11:15: error[group-too-large]: a group of 101 records does not fit into 100" in output
    assert output == ended.out or ended.out == ""


def test_no_noise_is_a_warning_and_gives_an_infinite_epsilon(dpspec, tmp_path):
    at = "mechanism.noise_multiplier=0"
    path = tmp_path / "none.yaml"
    path.write_text(PARAMETERS, encoding="utf-8")
    ended = dpspec("validate", path, "--set", at)
    assert ended.code == 0
    assert "--set:1:28: warning[no-noise]: without noise epsilon is infinite" in ended.out
    result = tmp_path / "none.json"
    ended = dpspec("run", path, "--set", at, "--report", f"json={result}")
    assert ended.code == 1
    assert "warning[no-noise]" in ended.err
    assert ended.out.count("REFUTED ") == 2
    assert "epsilon is infinite, above the claimed 3, without noise" in " ".join(ended.out.split())
    (audit,) = json.loads(result.read_text(encoding="utf-8"))["audits"]
    assert {f["value"] for f in audit["findings"]} == {"inf"}
    assert dpspec("verify", result).code == 0


def test_training_without_noise_is_attacked_like_any_other(dpspec, tmp_path):
    from dpspec.registry.loader import load_catalog

    path = tmp_path / "none.yaml"
    path.write_text(load_catalog().mechanisms["group"].provider.example, encoding="utf-8")
    ended = dpspec("run", path, "--set", "mechanism.noise_multiplier=0", "--set", "mechanism.steps=5")
    assert ended.code == 1, ended.err
    assert "1 of 1 trials to train" in ended.err
    assert "PROVED" not in ended.out
    assert "NO DEVIATION FOUND" in ended.out


def test_values_of_tables_are_shown_only_internally(dpspec: Callable[..., Any], table: Path) -> None:
    (table.parent / "patients.csv").write_text("Miller;Ann\n1;2\n")
    arguments = ("validate", table.name, "--set", 'data.separator=";"')
    assert "Miller" not in dpspec(*arguments).out
    assert "= value: its columns: Miller, Ann" in dpspec(*arguments, "--internal").out
