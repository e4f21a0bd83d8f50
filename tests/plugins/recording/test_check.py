"""One judge: ``check``, ``run`` of the spec, page and JSON give a recording one verdict, by the weakest evidence."""

import dataclasses
import json
import re
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.checked_runs import Question, check_run
from support.opacus_training import Training
from support.recordings import MAKERS, Recordings

import dpspec
from dpspec.cli.app import main
from dpspec.contract import Assumption, Check
from dpspec.contract.findings import Channel
from dpspec.contract.results import Result
from dpspec.errors import PluginError, SpecError, UsageError
from dpspec.language.declared_facts import with_declared_facts
from dpspec.language.load import from_command, from_document
from dpspec.language.problems import validator_class
from dpspec.registry.loader import load_catalog
from dpspec_recording.judge import check
from dpspec_recording.judge.channels import CHANNELS, assumes, channels, complete
from dpspec_recording.judge.check import document_of
from dpspec_recording.outcomes.conditions import channel_of
from dpspec_recording.outcomes.issue import Issue

DELTA = 1e-5


def opacus(folder: Path, change: Callable[[Training], Any] | None = None, **options: Any) -> None:
    """A recorded Opacus training; ``change`` may patch it, and returns what happens after each step."""
    way = Training(epochs=2, **options).build()
    each = change(way) if change is not None else None
    with way.recorder(folder):
        way.train(each)


def second_optimizer(way: Training) -> Callable[[Training], None]:
    other = torch.optim.SGD(way.model.parameters(), lr=0.1)

    def step(_: Training) -> None:
        for p in way.model.parameters():
            p.grad = torch.ones_like(p)
        other.step()

    return step


def wrong_accountant(way: Training) -> None:
    original = way.engine.accountant.step
    way.engine.accountant.step = lambda *, noise_multiplier, sample_rate: original(
        noise_multiplier=2.0 * noise_multiplier, sample_rate=sample_rate
    )


def incomplete(folder: Path) -> None:
    opacus(folder)
    log = folder / "public.log"
    log.write_bytes(log.read_bytes()[:-1])


def middle(result: Result) -> float:
    """Between the ends of the certified interval."""
    (upper,) = [one for one in result.audits[0].findings if one.bound == "upper"]
    assert upper.lower is not None
    return 0.5 * (upper.lower + upper.value)


#: By name: how the recording is made, the claim or how it follows from the result without one, adjacency, verdict.
RECORDINGS: dict[str, tuple[Callable[[Path], None], Any, str, str]] = {
    "sound": (opacus, 9.0, "zero-out", "proved"),
    "shuffled": (lambda at: opacus(at, poisson=False), 100.0, "zero-out", "open"),
    "shuffled, claimed as Poisson": (lambda at: opacus(at, poisson=False), 4.0, "zero-out", "refuted"),
    "shuffled, with another record": (lambda at: opacus(at, poisson=False), 4.0, "add-remove", "refuted"),
    "shuffled, with an unaccounted fault": (
        lambda at: opacus(at, second_optimizer, poisson=False),
        0.1,
        "zero-out",
        "open",
    ),
    "doubled epochs": (MAKERS["flat"], 2.98, "zero-out", "refuted"),
    "wrong optimizer": (lambda at: opacus(at, second_optimizer), 9.0, "zero-out", "open"),
    "claim too small": (opacus, middle, "zero-out", "open"),
    "claim below the lower end": (opacus, 1.0, "zero-out", "refuted"),
    "incomplete": (incomplete, 9.0, "zero-out", "open"),
    "canaries that refute": (MAKERS["leaking canaries"], 2.5, "zero-out", "refuted"),
    "add-remove without public constants": (opacus, 9.0, "add-remove", "open"),
    "deviating accountant": (lambda at: opacus(at, wrong_accountant), 9.0, "zero-out", "open"),
}


#: The recordings that every test run checks.
QUICK = ("sound", "shuffled, claimed as Poisson", "wrong optimizer", "incomplete")


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.ci) for name in RECORDINGS]
)
def test_every_way_gives_a_recording_the_same_verdict(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make, claimed, adjacency, verdict = RECORDINGS[name]
    make(Path("run"))
    if callable(claimed):
        claimed = claimed(check_run(Path("run"), Question(delta=DELTA)).result)
    question = Question(delta=DELTA, epsilon=claimed, adjacency=adjacency)
    asked = ["--epsilon", repr(claimed), "--delta", repr(DELTA), "--adjacency", adjacency]
    code = main(["check", "run", *asked, "--report", "json=check.json", "--report", "html=check.html"])
    assert code == (0 if verdict == "proved" else 1)
    printed = capsys.readouterr().out
    words = {"proved": {"PROVED"}, "refuted": {"REFUTED"}, "open": {"NOT", "DEVIATES"}}[verdict]
    assert printed.split()[0] in words
    Path("spec.yaml").write_text(yaml.safe_dump(document_of(Path("run"), question)))
    assert main(["run", "spec.yaml", "--report", "json=run.json", "--report", "html=run.html"]) == code
    assert capsys.readouterr().out.split()[0] in words
    audits = [json.loads(Path(file).read_text())["audits"][0] for file in ("check.json", "run.json")]
    assert [audit["verdicts"][0]["verdict"] for audit in audits] == [verdict] * 2
    assert audits[0]["verdicts"] == audits[1]["verdicts"]
    assert audits[0]["recording"] == audits[1]["recording"]
    for file in ("check.html", "run.html"):
        (badge,) = re.findall(r'<h3><span class="verdict ([a-z-]+)">([a-z]+)', Path(file).read_text())
        assert badge == (verdict, verdict)
    if main(["new", "spec", "made", "--from", "run"]) == 0:
        made = yaml.safe_load(Path("made.yaml").read_text())
        made["claims"][0] |= {"epsilon": claimed, "delta": DELTA}
        made["threat_model"] = {"adjacency": adjacency}
        Path("made.yaml").write_text(yaml.safe_dump(made))
        assert main(["run", "made.yaml", "--report", "json=made.json"]) == code
        assert json.loads(Path("made.json").read_text())["audits"][0]["verdicts"][0]["verdict"] == verdict
    for file in ("check.json", "check.html"):
        assert main(["verify", file]) == 0


@pytest.fixture
def sound(recordings: Recordings) -> Path:
    return recordings["flat"]


@pytest.mark.ci
def test_a_result_says_what_the_user_assumes_and_declares_public(sound: Path) -> None:
    question = Question(epsilon=9.0, adjacency="add-remove", assume=("released-model",), public=("rate", "divisor"))
    found = check_run(sound, question)
    assert (found.audit.recording.assumed, found.audit.recording.public) == (("released-model",), ("rate", "divisor"))
    assert found.verdict == "proved"


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_nothing_claimed_is_neither_proved_nor_refuted(adjacency: str, sound: Path) -> None:
    found = check_run(sound, Question(delta=1e-6, adjacency=adjacency, group_sizes=(1, 3)))
    assert (found.verdict, found.exit_code) == (None, 5)
    uppers = [dict(one.at) for one in found.audit.findings if one.bound == "upper"]
    assert uppers == [{"delta": 1e-6, "group_size": 1}, {"delta": 1e-6, "group_size": 3}]


@pytest.mark.ci
def test_adam_keeps_the_lower_end_from_refuting(recordings: Recordings) -> None:
    """All iterates of Adam may show less than all noisy sums."""
    found = check_run(recordings["adamw"], Question(epsilon=1.0))
    assert [one.bound for one in found.audit.findings] == ["upper"]
    assert (found.verdict, found.exit_code) == ("open", 1)


def made(*, exact: bool = False, **other: Any) -> Issue:
    given = {
        "assumption": "independent-noise",
        "test": "a test",
        "p_value": 0.5,
        "observed": "reported",
        "detectable": 0.1,
    }
    check = Check(**{**given, **other})
    return Issue(name="test", condition=check.assumption, level="deviates", text=check.test, test=check, is_exact=exact)


def exact(right: bool = True) -> Issue:
    return made(exact=True, p_value=float(right), detectable=0.0)


def noise(*given: Issue | Assumption, assumed: tuple[str, ...] = ()) -> Channel:
    checks = [one for one in given if isinstance(one, Issue)]
    rest = complete(checks, [one for one in given if isinstance(one, Assumption)], assumed)
    return {one.name: one for one in channels(checks, rest)}["noise"]


def assumption(status: Any, name: str = "precision") -> Assumption:
    return Assumption(name=name, status=status, text="why")


@pytest.mark.parametrize(
    ("given", "status", "detectable"),
    [
        ((exact(),), "verified", 0.0),
        ((exact(), made(), made(detectable=0.02)), "tested", 0.02),
        ((made(), assumption("declared")), "assumed", 0.1),
        ((assumption("declared", "noise-law"),), "assumed", None),
        ((made(), assumption("declared", "noise-law")), "tested", 0.1),
        ((made(), assumption("declared"), assumption("unchecked", "noise-law")), "open", None),
        ((made(), assumption("unchecked")), "open", None),
        ((made(), assumption("unchecked"), exact(False)), "violated", None),
        ((made(), assumption("false")), "violated", None),
        ((), "open", None),
    ],
)
def test_the_weakest_evidence_decides(given: Any, status: str, detectable: float | None) -> None:
    found = noise(*given)
    assert (found.status, found.detectable) == (status, detectable)


@pytest.mark.parametrize("name", ["noise", "precision"])
def test_what_is_open_can_be_assumed_and_what_is_violated_cannot(name: str) -> None:
    found = noise(made(), assumption("unchecked"), assumed=(name,))
    assert (found.status, found.assumes) == ("assumed", ("precision",))
    assert noise(made(), assumption("false"), assumed=(name,)).status == "violated"
    assert noise(exact(False), assumption("unchecked"), assumed=(name,)).status == "violated"
    assert noise(assumed=("noise",)).status == "assumed"
    assert noise(made(), assumption("unchecked"), assumed=("independent-noise",)).status == "open"


def test_an_exception_comes_before_its_consequences() -> None:
    doubts = [assumption("unchecked", name) for name in ("model-state", "ended-by-error")]
    names = [one.name for one in channels([], complete([], doubts))]
    assert names.index("released-model") == 0 < names.index("model-state")


def test_all_that_is_said_of_a_run_belongs_to_a_channel(sound: Path) -> None:
    found = check_run(sound, Question(delta=1e-5))
    names = {one.assumption for one in found.checks} | {one.name for one in found.assumptions}
    assert {name for name in names if channel_of(name) is None} <= {"accounting", "canaries", "honest-script"}
    assert tuple(one.name for one in found.channels) == CHANNELS
    assert all(one.status in ("verified", "tested", "assumed") for one in found.channels)


def test_the_headline_has_the_number(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check_run(sound, Question(delta=1e-5, epsilon=9.0))
    named = assumes(found.channels)
    assert {"one-record", "secret-randomness", "released-model", "honest-script"} <= set(named)
    assert main(["check", str(sound), "--epsilon", "9"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("PROVED epsilon <= 9 at delta = 1e-5: at most ")
    assert main(["check", str(sound), "--epsilon", "9", "-v"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{one.name} {one.status} " in text for one in found.channels)
    assert main(["check", str(sound), "--epsilon", "9", "-q"]) == 0
    assert capsys.readouterr().out == "1 audit, 1 claim: all as expected\n"


@pytest.mark.ci
def test_a_channel_that_ghost_clipping_leaves_open_can_be_assumed(recordings: Recordings) -> None:
    verdicts = {
        name: check_run(recordings["ghost by hand"], Question(delta=1e-5, epsilon=9.0, assume=name)).verdict
        for name in ((), ("noise",), ("per-record-clipping",), ("sensitivity",))
    }
    assert verdicts == {(): "open", ("noise",): "open", ("per-record-clipping",): "proved", ("sensitivity",): "proved"}


@pytest.mark.ci
def test_declared_facts_are_in_the_statement_and_change_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    opacus(tmp_path / "run")
    command = ["check", "run", "--epsilon", "9"]
    assert main([*command, "--report", "json=bare.json"]) == 0
    Path("facts.yaml").write_text("contact: a@b.example\ndata: {collection: {name: Visits 2024}}\n")
    reports = ("json=told.json", "statement=told.md", "html=told.html")
    options = [option for report in reports for option in ("--report", report)]
    assert main([*command, "--declare", "facts.yaml", *options]) == 0
    (bare,), (told,) = (json.loads(Path(name).read_text())["audits"] for name in ("bare.json", "told.json"))
    assert (told["verdicts"], told["digest"]) == (bare["verdicts"], bare["digest"])
    assert "Visits 2024 (declared)" in Path("told.md").read_text()
    assert "--declare facts.yaml" in Path("told.html").read_text()
    assert main(["verify", "told.html"]) == 0
    Path("facts.yaml").write_text("contact: a@b.example\ndeployment: {trust_model: centrall}\n")
    capsys.readouterr()
    assert main([*command, "--declare", "facts.yaml", "--report", "junit=junit.xml"]) == 3
    assert "facts.yaml:2:27: error[bad-choice]: 'centrall' is not a choice for trust_model" in capsys.readouterr().err
    assert "centrall" in Path("junit.xml").read_text()
    with pytest.raises(SpecError, match="centrall"):
        dpspec.check("run", epsilon=9, declare="facts.yaml")
    assert main(["check", "--history", "h.json", "--declare", "facts.yaml"]) == 2


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"epsilon": "8"}, "--epsilon must be a number, got '8'"),
        ({"epsilon": True}, "--epsilon must be a number"),
        ({"delta": "1e-5"}, "--delta must be a number"),
        ({"group_size": 1.5}, "--group-size must be integers"),
        ({"group_size": "8"}, "--group-size must be integers"),
        ({"group_size": [1, 8.5]}, "--group-size must be integers"),
    ],
)
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, claim: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        dpspec.check(tmp_path, **claim)


def test_several_group_sizes_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("dpspec_recording.checking.check_run", lambda run, claim, **_: asked.append(claim))
    dpspec.check(tmp_path, epsilon=8, group_size=[8, 4])
    dpspec.check(tmp_path, epsilon=8, group_size=8)
    assert [claim.group_sizes for claim in asked] == [(8, 4, 1), (8, 1)]


@pytest.mark.parametrize(
    "claim",
    [
        Question(),
        Question(epsilon=3, delta=1e-6, group_sizes=(8, 1), adjacency="add-remove"),
        Question(epsilon=0.0, public=("rate", "divisor"), accept=("low-precision-noise",), ignore=("large-delta",)),
        Question(epsilon=np.float32(2.0), group_sizes=(np.int64(2),), assume=("released-model",)),
    ],
)
@pytest.mark.parametrize("declared", [{}, {"owner": "a team", "data": {"collection": {"name": "digits"}}}])
def test_the_spec_of_a_recording_is_the_one_that_validation_gives(
    claim: Question, declared: dict[str, Any], sound: Path
) -> None:
    catalog = load_catalog()
    document = with_declared_facts(document_of(sound, claim, "model.pt"), declared)
    assert from_command(document, catalog) == from_document(document, catalog)


def test_the_spec_of_a_recording_needs_the_plugin(sound: Path) -> None:
    catalog = load_catalog()
    without = dataclasses.replace(catalog, backends={})
    with pytest.raises(PluginError, match="backend"):
        from_command(document_of(sound, Question()), without)


def test_no_validator_runs_in_a_check_except_on_what_the_user_wrote(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[Any] = []
    validator = validator_class()

    def noted(self: Any, instance: Any, *arguments: Any) -> Iterator[Any]:
        validated.append(instance)
        return original(self, instance, *arguments)

    original = validator.iter_errors
    monkeypatch.setattr(validator, "iter_errors", noted)
    declared = tmp_path / "facts.yaml"
    declared.write_text("owner: a team\n")
    assert main(["check", str(sound), "--epsilon", "9", "--public", "rate"]) == 0
    assert validated == []
    assert main(["check", str(sound), "--epsilon", "9", "--declare", str(declared)]) == 0
    assert validated[0] == {"owner": "a team"}  # as a whole, and then its keys
    assert all(instance in (validated[0], "a team") for instance in validated)


@pytest.mark.parametrize("folder", ["_run", "-_.run", "läufe", "...", "_"])
def test_the_spec_of_a_folder_with_any_name_is_valid(folder: str, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / folder)
    document = document_of(tmp_path / folder, Question())
    assert from_document(document, load_catalog()).name == document["name"]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Question(public=("rate",) * 51), "public: at most 50 names are allowed, got 51"),
        (Question(accept=("low-precision-noise",) * 101), "accept: at most 100 names are allowed, got 101"),
        (Question(group_sizes=tuple(range(1, 1002))), "--group-size must be 1 to 1000 numbers, got 1001"),
    ],
)
def test_a_claim_that_no_spec_can_state_is_refused(claim: Question, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        claim.require_valid()


@pytest.mark.parametrize(("records", "delta"), [(None, 1e-5), (99_999, 1e-5), (100_000, 1e-6), (1_281_167, 1e-7)])
def test_a_question_without_a_claim_has_a_delta_below_one_over_the_number_of_records(records, delta, monkeypatch):
    header = types.SimpleNamespace(records=records)
    monkeypatch.setattr(check, "open_run", lambda *_: types.SimpleNamespace(header=header))
    assert check.usual_delta(Path("run"), "zero-out") == delta
    assert check.usual_delta(Path("run"), "add-remove") == 1e-5  # the number of records is not public
