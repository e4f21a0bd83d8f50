"""A recording from which a fact was removed, with rebuilt digests, leaves the channel of its check open."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from support.checked_runs import CheckedRun, checked, run_page
from support.opacus_training import Training
from support.ranks import Ranked

from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.run_folder import END, MARK, STEPS, JournalWriter, read_frames
from dpspec_recording.probes.builtin import PROBES

#: The channel of each fact's check, in a training with flat clipping. The accountant belongs to none.
CHANNELS = {
    "updates": ["update-rule"],
    "optimizer_state": ["update-rule"],
    "passes": ["gradient-parameters"],
    "noisy_gradients": ["update-rule"],
    "maps": ["update-rule"],
    "sums": ["sensitivity"],
    "clip_limits": ["sensitivity"],
    "replays": ["sensitivity"],
    "rules": ["sensitivity"],
    "batches": ["sampling"],
    "noise": ["noise"],
    "accountant": [],
}

#: Facts of other trainings, and facts that honest trainings lack too: a reduction that no replay compares is assumed,
#: and gradients that are not compared leave ``loop-reports`` open.
OF_OTHERS = {"ghost", "adaptive", "gradients"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, training = tmp_path_factory.mktemp("sound") / "run", Training(epochs=1).build()
    with training.recorder(folder):
        training.train()
    return folder


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, training = tmp_path_factory.mktemp("resumed") / "run", Training(epochs=1).build()
    for _ in range(2):
        with training.recorder(folder, resume=True):
            training.train()
    return folder


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranked") / "run"
    assert Ranked(folder, batch=100).run() == [0, 0]
    return folder


def without(fact: str, folder: Path) -> None:
    edit_end(folder, lambda end: {**end, fact: None})


def edit_end(folder: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Edit the facts at the end of a recording, and rebuild the digests of its log."""
    first = hashlib.sha256((folder / MARK).read_bytes()).digest()
    frames = list(read_frames(folder / STEPS, first))
    (folder / STEPS).unlink()
    journal = JournalWriter(folder / STEPS, first)
    for frame in frames:
        payload = frame.payload
        if frame.kind == END:
            payload = json.dumps(edit(json.loads(payload))).encode()
        journal.append(frame.kind, payload)
    journal.close()


def judged(folder: Path) -> CheckedRun:
    return checked(folder, epsilon=100.0)


def test_a_sound_recording_lacks_no_fact(sound: Path) -> None:
    found = judged(sound)
    assert found.verdict == "proved"
    assert found.channel("update-rule").status == "verified"


def test_each_fact_that_may_be_unknown_is_required() -> None:
    kinds = get_type_hints(Facts) | {probe.name: probe.kind for probe in PROBES}
    nullable = {name for name, kind in kinds.items() if type(None) in get_args(kind)}
    assert nullable == {*CHANNELS, *OF_OTHERS}
    assert {probe.name for probe in PROBES if probe.lacks is not None} == nullable - {"gradients"}


@pytest.mark.family
@pytest.mark.parametrize("fact", CHANNELS)
def test_a_missing_fact_leaves_its_channel_open(fact: str, sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    without(fact, folder)
    found = judged(folder)
    assert found.verdict == "open"
    assert [channel.name for channel in found.channels if channel.status == "open"] == CHANNELS[fact]


def test_a_rule_without_facts_is_named(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")

    def forget(end: dict[str, Any]) -> dict[str, Any]:
        (by_rule,) = end["rules"]["by_rule"]
        return {
            **end,
            "rules": {"by_rule": [{name: fact for name, fact in by_rule.items() if name != "guessable-seed"}]},
        }

    edit_end(folder, forget)
    found = judged(folder)
    assert found.verdict == "open"
    assert "the cautions of the rules: guessable-seed" in found.reason


def test_a_rule_that_failed_is_named(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    failed = {"guessable-seed": {"facts": None, "error": "ValueError: no"}}
    edit_end(
        folder,
        lambda end: {**end, "rules": {"by_rule": [{**by_rule, **failed} for by_rule in end["rules"]["by_rule"]]}},
    )
    assert "did not look for their mistakes: guessable-seed" in run_page(judged(folder), 200)
    assert "did not look for" not in run_page(judged(sound), 200)


@pytest.mark.ci
@pytest.mark.parametrize("fact", CHANNELS)
def test_a_fact_that_one_part_lacks_leaves_the_claim_open(fact: str, resumed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(resumed, tmp_path / "run")
    assert judged(folder).verdict == "proved"
    without(fact, folder / "part-2")
    assert judged(folder).verdict == "open"


@pytest.mark.ci
@pytest.mark.parametrize("fact", ["updates", "clip_limits", "noise", "rules"])
def test_a_fact_that_one_rank_lacks_leaves_the_claim_open(fact: str, ranked: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ranked, tmp_path / "run")
    assert judged(folder).verdict == "proved"
    without(fact, folder / "rank-0")
    assert judged(folder).verdict == "open"


@pytest.mark.ci
@pytest.mark.parametrize(("clipping", "fact"), [("ghost", "ghost"), ("adaptive", "adaptive")])
def test_a_fact_of_a_clipping_is_required(clipping: str, fact: str, tmp_path: Path) -> None:
    folder, training = tmp_path / "run", Training(epochs=1, clipping=clipping).build()
    with training.recorder(folder):
        training.train()
    assert judged(folder).verdict == "proved"
    without(fact, folder)
    assert judged(folder).verdict == "open"
