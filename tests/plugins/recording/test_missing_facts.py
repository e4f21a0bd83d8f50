"""A recording from which a fact was removed, with rebuilt digests, leaves the channel of its check open."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from support.checked_runs import CheckedRun, checked
from support.opacus_training import Training

from dpspec_recording.folder.run_folder import END, MARK, STEPS, JournalWriter, read_frames

#: The channel of each fact's check.
CHANNELS = {
    "updates": "update-rule",
    "restated": "update-rule",
    "meddled": "update-rule",
    "sums": "sensitivity",
    "clip_limits": "sensitivity",
    "seeds": "noise",
    "noise": "noise",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, training = tmp_path_factory.mktemp("sound") / "run", Training(epochs=1).build()
    with training.recorder(folder):
        training.train()
    return folder


def without(fact: str, folder: Path) -> None:
    """Remove a fact from the end of a recording, and rebuild the digests of its log."""
    first = hashlib.sha256((folder / MARK).read_bytes()).digest()
    frames = list(read_frames(folder / STEPS, first))
    (folder / STEPS).unlink()
    journal = JournalWriter(folder / STEPS, first)
    for frame in frames:
        payload = frame.payload
        if frame.kind == END:
            payload = json.dumps({**json.loads(payload), fact: None}).encode()
        journal.append(frame.kind, payload)
    journal.close()


def judged(folder: Path) -> CheckedRun:
    return checked(folder, epsilon=100.0)


def test_a_sound_recording_lacks_no_fact(sound: Path) -> None:
    found = judged(sound)
    assert found.verdict == "proved"
    assert found.channel("update-rule").status == "verified"


@pytest.mark.family
@pytest.mark.parametrize("fact", CHANNELS)
def test_a_missing_fact_leaves_its_channel_open(fact: str, sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "run")
    without(fact, folder)
    found = judged(folder)
    assert found.verdict == "open"
    assert found.channel(CHANNELS[fact]).status == "open"
    assert [channel.name for channel in found.channels if channel.status == "open"] == [CHANNELS[fact]]


@pytest.mark.ci
def test_updates_that_one_part_lacks_leave_the_claim_open(tmp_path: Path) -> None:
    folder, training = tmp_path / "run", Training(epochs=1).build()
    for _ in range(2):
        with training.recorder(folder, resume=True):
            training.train()
    assert judged(folder).channel("update-rule").status == "verified"
    without("updates", folder / "part-2")
    assert judged(folder).channel("update-rule").status == "open"
