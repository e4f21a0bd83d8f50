"""training: {backend: recorded, run: PATH}: a spec is judged by the executed run, and agrees with dpspec check."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.checked_runs import checked
from support.opacus_training import SECRET, Training
from support.plain_loop import plain_loop
from support.recordings import Recordings

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.accounting.numerics import Directions
from dpspec.cli.app import main
from dpspec.reporters.risk import FALSE_POSITIVES, rates
from dpspec.results.codec import load
from dpspec_recording.judge.bounds import ScheduleBounds, _epsilon_of
from dpspec_recording.judge.executed_run import observe
from dpspec_recording.judge.findings import schedule_findings

SPEC = """\
dpspec: 1
name: recorded
description: A training that was recorded
mechanism:
  kind: group
  noise_multiplier: {noise}
  clip_norm: {clip}
  sampling: {{scheme: poisson, rate: {rate}}}
  steps: {steps}
data: {{kind: declared, records: {records}, features: 6, classes: 2}}
training: {{backend: recorded, run: run{more}}}
threat_model: {{adjacency: {adjacency}}}
claims:
  - {{id: one, kind: approx-dp, epsilon: {epsilon}, delta: 1e-5}}
"""

DECLARED: dict[str, Any] = {
    "noise": 1.1,
    "clip": 1.0,
    "rate": 0.1,
    "steps": 40,
    "records": 300,
    "epsilon": 4.0,
    "adjacency": "zero-out",
    "more": "",
}


@pytest.fixture
def place(recordings: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    recordings.copy("flat", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(place: Path, **other: Any) -> tuple[int, dict[str, Any]]:
    """The exit code, and the audit of the result, of a spec with other values."""
    (place / "spec.yaml").write_text(SPEC.format(**{**DECLARED, **other}))
    code = main(["run", "spec.yaml", "--report", "json=result.json"])
    return code, json.loads((place / "result.json").read_text())["audits"][0] if code in (0, 1) else {}


@pytest.mark.family
@pytest.mark.parametrize("kind", ["check", "spec"])
def test_the_risk_of_a_recorded_run_is_that_of_its_whole_curve(kind: str, place: Path) -> None:
    """Oracle: the powers of the best tests of the composition, in the worse direction; one point allows far more."""
    if kind == "check":
        audit = checked(place / "run", epsilon=4.0, delta=1e-5).audit
    else:
        assert ran(place)[0] == 0
        assert main(["verify", "result.json"]) == 0
        (audit,) = load((place / "result.json").read_text()).audits
    (rate,) = rates(audit)
    directions: tuple[Directions, ...] = ("present-first", "absent-first")
    for power, level in zip(rate.powers, FALSE_POSITIVES, strict=True):
        pair = Mixture.poisson(1, 0.1, 1.1)
        losses = [PrivacyLoss(((pair, 40),), direction) for direction in directions]
        true = max(1.0 - loss.tradeoff(level).upper for loss in losses)
        assert true <= power <= 1.02 * true


@pytest.mark.family
@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"noise": 1.2}, "noise multiplier that the spec declares"),
        ({"noise": 1.0}, "noise multiplier that the spec declares"),
        ({"rate": 0.09}, "sampling rate that the spec declares"),
        ({"clip": 0.5}, "clip norm that the spec declares"),
        ({"steps": 39}, "updates that the spec declares"),
        ({"records": 301}, "records that the spec declares"),
    ],
)
def test_a_run_that_is_not_the_declared_one_deviates(other: dict[str, Any], words: str, place: Path) -> None:
    code, audit = ran(place, epsilon=9.0, **other)
    assert (code, audit["conformance"]["status"]) == (1, "deviates")
    assert [check["test"] for check in audit["checks"] if check["p_value"] == 0.0] == [f"{words}, exact"]


@pytest.mark.family
@pytest.mark.parametrize(
    ("more", "arguments", "code"),
    [
        ("", "", 1),
        ("public: [rate]", "--public rate", 1),
        ("public: [rate, divisor]", "--public rate --public divisor", 0),
        ("assume: [constants]", "--assume constants", 0),
    ],
)
def test_constants_that_may_count_the_records_are_declared_public(more, arguments, code, place):
    found, audit = ran(place, adjacency="add-remove", more=f", {more}" if more else "")
    assert (found, audit["verdicts"][0]["verdict"]) == (code, "open" if code else "proved")
    assert main(["check", "run", "--epsilon", "4", "--adjacency", "add-remove", *arguments.split()]) == code


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (", assume: [constnts]", "'constnts' is unknown; did you mean 'constants'?"),
        (", public: [divisr]", "'divisr' is unknown; did you mean 'divisor'?"),
    ],
)
def test_unknown_names_are_located(more: str, words: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(place, more=more)[0] == 3
    shown = capsys.readouterr().err
    assert words in " ".join(shown.split())
    assert "spec.yaml:11:" in shown


@pytest.mark.ci
def test_what_has_no_bound_has_none_by_phases_that_were_written_after_it(place: Path, recordings: Recordings) -> None:
    """The noisy count of adaptive clipping costs too, and phases do not declare it."""
    shutil.rmtree(place / "run")
    recordings.copy("adaptive", place / "run")
    run = observe(place / "run")[0]
    steps = zip(run.configured_multipliers, run.rates, run["clip_norm"].tolist(), strict=True)
    document = yaml.safe_load(SPEC.format(**DECLARED))
    document["claims"][0]["epsilon"] = 50.0
    document["mechanism"] = {
        "kind": "group",
        "phases": [
            {"steps": 1, "noise_multiplier": noise, "clip_norm": clip, "sampling": {"scheme": "poisson", "rate": rate}}
            for noise, rate, clip in steps
        ],
    }
    (place / "spec.yaml").write_text(yaml.safe_dump(document))
    assert main(["run", "spec.yaml", "--report", "json=result.json"]) == 1
    (audit,) = json.loads((place / "result.json").read_text())["audits"]
    assert audit["conformance"]["status"] == "no-deviation-found"
    assert audit["verdicts"][0]["verdict"] == "open"
    assert "phases do not declare the noisy count" in audit["verdicts"][0]["reason"]


def test_verify_detects_a_changed_or_missing_folder(
    place: Path, recordings: Recordings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(place)[0] == 0
    assert main(["verify", "result.json"]) == 0
    log = place / "run" / "public.log"
    kept = log.read_bytes()
    log.write_bytes(kept[:200] + bytes([kept[200] ^ 1]) + kept[201:])
    capsys.readouterr()
    assert main(["verify", "result.json"]) == 1
    assert "event 1 at byte 0: its checksum does not match" in capsys.readouterr().out
    shutil.rmtree(place / "run")
    recordings.copy("adamw", place / "run")
    assert main(["verify", "result.json"]) == 1
    assert "SHA-256 of the recorded files" in capsys.readouterr().out
    shutil.rmtree(place / "run")
    assert main(["verify", "result.json"]) == 7
    alone = " ".join(capsys.readouterr().out.split())
    assert "taken as recorded" in alone
    assert (
        "verified without the recording: the verdicts of result.json follow from its stated bounds and tests" in alone
    )
    assert "put its folder run into DIR and run: dpspec verify result.json --directory DIR" in alone


def test_what_is_no_run_is_refused_with_3(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for harm in ("gone", "empty", "hostile"):
        shutil.rmtree(place / "run", ignore_errors=True)
        if harm != "gone":
            (place / "run").mkdir()
        if harm == "hostile":
            (place / "run" / "public.log").write_bytes(b"[" * 100_000)
        assert ran(place)[0] == 3
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        assert "run" in printed


@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        (
            "claims:",
            "audit: {method: one-run, canary: {space: gradient, count: 100}}\nclaims:",
            "dpspec does not retrain a recorded run",
        ),
        ("{scheme: poisson, rate: 0.1}", "{scheme: fixed, batch_size: 30}", "compared with Poisson samples"),
        ("adjacency: zero-out", "adjacency: replace-one", "zero-out and add-remove adjacency, not for replace-one"),
        ("delta: 1e-5}", "delta: 1e-5, adjacency: replace-one}", "adjacency, not for replace-one"),
        ("kind: group", "kind: rero", "a recording does not show everything that 'rero' does"),
        (", run: run}", "}", "run"),
        ("rate: 0.1}", "rate: 0.1, unit: user, records_per_user: 3}", "remove unit and records_per_user"),
    ],
)
def test_what_a_recording_does_not_show_is_refused(was, becomes, words, place, capsys):
    text = SPEC.format(**DECLARED)
    assert was in text
    (place / "spec.yaml").write_text(text.replace(was, becomes))
    assert main(["validate", "spec.yaml"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert words in out
    assert "missing-capability" not in out  # its help would contradict the first error


@pytest.mark.ci
def test_specs_and_differences_of_recorded_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "specs").mkdir()
    assert main(["new", "spec", "made", "--from", "run", "--in", "specs"]) == 0
    assert "run: ../run" in (place / "specs" / "made.yaml").read_text()
    assert main(["run", "specs/made.yaml", "--report", "json=first.json"]) == 0
    shutil.rmtree(place / "run")
    Training(epochs=4, noise=1.0).run(place / "run")
    assert main(["run", "specs/made.yaml", "--report", "json=second.json"]) == 1
    capsys.readouterr()
    assert main(["diff", "first.json", "second.json"]) == 1
    assert "conformance" in capsys.readouterr().out
    assert main(["run", "specs/made.yaml", "--bounds-only", "--report", "json=third.json"]) == 1


@pytest.mark.ci
@pytest.mark.parametrize("noises", [(1.0,), (2.0, 1.0, 1.5)])
def test_the_spec_of_a_run_is_proved_at_what_the_run_costs(noises, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain_loop(tmp_path / "run", 10, noises=noises, seed=SECRET)
    assert main(["check", "run", "--report", "json=-"]) == 5
    findings = json.loads(capsys.readouterr().out)["audits"][0]["findings"]
    (cost,) = [one["value"] for one in findings if one["bound"] == "upper"]
    assert main(["new", "spec", "recorded", "--from", "run"]) == 0
    text = (tmp_path / "recorded.yaml").read_text()
    assert "are not recorded; bounds do not depend on them" in text
    text = text.replace("run: run", "run: run\n  accept: {not-replayed: no record moves the sums of this loop}")
    (tmp_path / "recorded.yaml").write_text(text)
    if len(noises) > 1:  # no scheduler changed the noise
        assert main(["run", "recorded.yaml"]) == 1
        text = text.replace("run: run", "run: run\n  public: [noise_multiplier]")
        (tmp_path / "recorded.yaml").write_text(text)
    assert main(["run", "recorded.yaml", "--report", "json=result.json"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    (verdict,) = result["audits"][0]["verdicts"]
    assert verdict["verdict"] == "proved"
    assert verdict["upper"] == cost
    assert cost <= verdict["claimed"] <= cost * 1.001


@pytest.mark.ci
@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"steps": 10, "noises": (1.0, 0.0)}, "updates got no noise"),
        ({"rate": None}, "distribution of the batches is unknown"),
    ],
)
def test_what_has_no_bound_of_its_own_has_no_spec(made, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain_loop(tmp_path / "run", **made)
    assert main(["new", "spec", "recorded", "--from", "run"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "recorded.yaml").exists()


def test_a_mechanism_beside_a_run_makes_no_sense(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "spec", "a", "--from", "run", "--mechanism", "group"]) == 2
    assert "remove --mechanism" in capsys.readouterr().err


@pytest.mark.ci
def test_the_spec_of_a_ghost_clipping_run_is_as_expected_at_once(recordings, tmp_path, monkeypatch):
    """Single contributions are not observed, so a proof needs the user's assumption that they are clipped."""
    monkeypatch.chdir(tmp_path)
    recordings.copy("ghost by hand", tmp_path / "run")
    assert main(["new", "spec", "recorded", "--from", "run"]) == 0
    text = (tmp_path / "recorded.yaml").read_text()
    assert "add assume: [per-record-clipping] to training" in text
    assert main(["run", "recorded.yaml"]) == 0
    assert main(["run", "recorded.yaml", "--set", "claims.0.expect=[proved]"]) == 1
    assumed = ["--set", "claims.0.expect=[proved]", "--set", "training.assume=[per-record-clipping]"]
    assert main(["run", "recorded.yaml", *assumed]) == 0


def test_poisson_samples_have_the_same_bound_in_both_adjacencies(recordings: Recordings) -> None:
    """The schedule's bounds are computed once for both; each adjacency alone is the oracle."""
    run = observe(recordings["flat"])[0]
    schedule = ScheduleBounds(run)
    for adjacency in ("zero-out", "add-remove"):
        assert schedule.epsilon(adjacency, 1e-5, 2) == _epsilon_of(run, adjacency, 1e-5, 2)


def test_shuffled_batches_have_a_bound_in_one_adjacency(recordings: Recordings) -> None:
    schedule = ScheduleBounds(observe(recordings["shuffled"])[0])
    assert schedule.epsilon("add-remove", 1e-5, 1).interval is None
    assert schedule.epsilon("zero-out", 1e-5, 1).interval is not None
    (unbounded,) = schedule_findings(schedule, 1e-5, 1, "add-remove", ())
    assert (unbounded.lower, unbounded.value) == (0.0, math.inf)


@pytest.mark.ci
@pytest.mark.parametrize("noise", [1.1, 1.2])
def test_noisy_sums_of_a_run_that_deviates_have_no_stated_epsilon(
    place: Path, recordings: Recordings, noise: float
) -> None:
    shutil.rmtree("run")
    recordings.copy("adamw", place / "run")
    _, audit = ran(place, noise=noise, epsilon=0.5)
    deviates = audit["conformance"]["status"] == "deviates"
    assert deviates == (noise != 1.1)
    stated = [text for text in audit["recording"]["cautions"] if "noisy sums of all steps" in text]
    assert bool(stated) == (not deviates)
