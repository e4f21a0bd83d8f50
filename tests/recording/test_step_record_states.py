"""The bytes of a saved state, and states that no recorder writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dpspec.errors import RecordingError
from dpspec.recording.folder.header import Header
from dpspec.recording.folder.run_folder import MARK, STATE, STATES, JournalWriter, RunFolder, RunWriter
from dpspec.recording.folder.step_record import DIGESTS, OptionChange, SavedState

STATE_OF_A_RUN = SavedState(
    step=7,
    digests=dict.fromkeys(DIGESTS, "0f"),
    accounted=7,
    fresh=False,
    options={"lr": OptionChange("start", (0.1, 0.2)), "betas[0]": OptionChange("", (0.9, 0.9))},
    secret="ab",
    facts={"outside": 0.0, "noise": None},
)


def test_a_state_is_read_as_it_was_written() -> None:
    assert SavedState.decode(STATE_OF_A_RUN.encode()) == STATE_OF_A_RUN


@pytest.mark.parametrize(
    "changed",
    [
        {"more": 1},
        {"digests": {}},
        {"digests": 3},
        {"digests": dict.fromkeys(DIGESTS, 3)},
        {"secret": "a" * 201},
        {"step": -1},
        {"accounted": True},
        {"fresh": 1},
        {"options": []},
        {"options": "[1]"},
        {"options": '{"lr": [1, []]}'},
        {"options": '{"lr": ["", [[0.1, 10001]]]}'},
        {"options": '{"lr": ["", [[0.1, 5000], [0.2, 5001]]]}'},
        {"options": '{"lr": ["", [[9223372036854775808, 1]]]}'},
        {"options": '{"lr": ["", [[[], 1]]]}'},
        {"options": '{"lr": ["", [0.1]]}'},
        {"options": '{"lr": ""}'},
        {"facts": [1]},
    ],
    ids=str,
)
def test_other_states_are_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    content = json.dumps({**json.loads(STATE_OF_A_RUN.encode()), **changed}).encode()
    with pytest.raises(ValueError, match=r"a saved state|the options of a step"):
        SavedState.decode(content)
    RunWriter(tmp_path / "run", Header()).close()
    log = JournalWriter(
        tmp_path / "run" / STATES, hashlib.sha256((tmp_path / "run" / MARK).read_bytes()).digest(), new=False
    )
    log.append(STATE, content)
    log.close()
    with pytest.raises(RecordingError, match=r"states.log: frame 1: (a saved state|the options)"):
        RunFolder.open(tmp_path / "run").states()


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"3"])
def test_bytes_that_are_no_mapping_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        SavedState.decode(content)
