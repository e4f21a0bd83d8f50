"""Each check and each assumption counts for one channel, and the weakest of them decides its status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checked_runs import Question, check_run
from support.opacus_training import Training, recorded, two_passes

from dpspec.cli.app import main
from dpspec.contract import Assumption, Check
from dpspec.contract.findings import Channel
from dpspec.engine.recorded.channels import CHANNELS, assumes, channel_of, channels, complete
from dpspec.engine.results.recording import UNKNOWN
from dpspec.errors import UsageError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channels") / "run"
    Training(epochs=2).run(folder)
    return folder


def made(**other: Any) -> Check:
    given = {
        "assumption": "independent-noise",
        "test": "a test",
        "p_value": 0.5,
        "observed": "reported",
        "detectable": 0.1,
    }
    return Check(**{**given, **other})


def exact(right: bool = True) -> Check:
    return made(test="a comparison, exact", p_value=float(right), detectable=0.0)


def noise(*given: Check | Assumption, assumed: tuple[str, ...] = ()) -> Channel:
    checks = [one for one in given if isinstance(one, Check)]
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
        ((made(), assumption("unchecked", f"precision{UNKNOWN}")), "open", None),
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


def test_all_that_is_said_of_a_run_belongs_to_a_channel(sound: Path) -> None:
    found = check_run(sound, Question(delta=1e-5))
    names = {one.assumption for one in found.checks} | {one.name for one in found.assumptions}
    assert {name for name in names if channel_of(name) is None} <= {"accounting", "canaries"}
    assert tuple(one.name for one in found.channels) == CHANNELS
    assert all(one.status in ("verified", "tested", "assumed") for one in found.channels)


def test_the_headline_names_what_a_proof_assumes(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = check_run(sound, Question(delta=1e-5, epsilon=9.0))
    named = assumes(found.channels)
    assert {
        "one-record",
        "unmixed-batches",
        "secret-randomness",
        "released-model",
        "data-independent-hyperparameters",
    } <= set(named)
    assert {"library-code", "observed-passes"} <= set(named)
    assert main(["check", str(sound), "--epsilon", "9"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"PROVED, assuming {', '.join(named)} claim: epsilon <= 9")
    assert all(f"{one.name} {one.status} " in text for one in found.channels)
    assert main(["check", str(sound), "--epsilon", "9", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["audits"][0]["recording"]
    assert answer["assumes"] == list(named)
    assert [one["status"] for one in answer["channels"]] == [one.status for one in found.channels]


def test_a_channel_that_ghost_clipping_leaves_open_can_be_assumed(tmp_path: Path) -> None:
    recorded(tmp_path / "run", two_passes, clipping="ghost")
    verdicts = {
        name: check_run(tmp_path / "run", Question(delta=1e-5, epsilon=9.0, assume=name)).verdict
        for name in ((), ("noise",), ("per-record-clipping",), ("sensitivity",))
    }
    assert verdicts == {(): "open", ("noise",): "open", ("per-record-clipping",): "proved", ("sensitivity",): "proved"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"assume": ("one-recrd",)}, "assume: 'one-recrd' is unknown; did you mean 'one-record'?"),
        ({"public": ("lerning_rate",)}, "public: 'lerning_rate' is unknown; did you mean 'learning_rate'?"),
    ],
)
def test_unknown_names_are_refused(given: Any, words: str, sound: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check_run(sound, Question(delta=1e-5, **given))
    assert str(caught.value).startswith(words)
