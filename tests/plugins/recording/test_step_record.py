"""Bytes of record numbers, steps and saved states, and bytes that no recorder writes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.errors import RecordingError
from dpspec_recording.folder.header import Header
from dpspec_recording.folder.run_folder import STATE, STATES, JournalWriter, RunFolder, RunWriter
from dpspec_recording.folder.step_record import (
    DIGESTS,
    MOST_RECORDS,
    InternalStep,
    OptionChange,
    RankStep,
    SavedState,
    Unread,
    decode_members,
    decode_options,
    encode_members,
    encode_options,
)
from dpspec_recording.probes.builtin import PROBES


@given(st.lists(st.integers(0, MOST_RECORDS - 1), max_size=60))
def test_every_number_comes_back_sorted_and_as_often_as_it_was(numbers):
    assert decode_members(encode_members(np.array(numbers, dtype=np.int64))).tolist() == sorted(numbers)


def test_a_poisson_sample_takes_at_most_two_bytes_for_each_record():
    drawn = np.flatnonzero(np.random.default_rng(0).random(60_000) < 0.01)
    assert len(encode_members(drawn)) <= 2 * len(drawn) + 1


@pytest.mark.parametrize("numbers", [[-1], [MOST_RECORDS]])
def test_numbers_that_no_record_has_are_refused(numbers):
    with pytest.raises(ValueError, match="record numbers"):
        encode_members(np.array(numbers))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data):
    try:
        found = decode_members(data)
    except ValueError:
        return
    assert (np.diff(found) >= 0).all()
    assert ((found >= 0) & (found < MOST_RECORDS)).all()


RANK = RankStep(
    **{
        name: bytes([n] * 8)
        for n, name in enumerate(("gradients", "parameters", "seed", "noise_seed", "noise_state", "order"))
    },
    foreign=3,
    own=np.arange(4, dtype=np.float32),
    total=np.arange(4, 8, dtype=np.float32),
    noise=np.arange(8, 10, dtype=np.float16),
)


@given(st.integers(0, 300), st.integers(0, 255))
def test_damaged_observations_are_read_or_refused(place, value):
    data = bytearray(InternalStep(step=1, members=np.array([2, 7]), rank=RANK).encode())
    data[place % len(data)] = value
    for content in (bytes(data), bytes(data[: place % len(data)])):
        try:
            InternalStep.decode(content)
        except ValueError:
            continue


STATE_OF_A_RUN = SavedState(
    step=7,
    digests=dict.fromkeys(DIGESTS, "0f"),
    accounted=7,
    fresh=False,
    options={"lr": OptionChange("start", (0.1, 0.2)), "betas[0]": OptionChange("", (0.9, 0.9))},
    secret="ab",
    facts={"outside": 0.0, "noise": None},
)


def test_a_state_is_read_as_it_was_written():
    assert SavedState.decode(STATE_OF_A_RUN.encode()) == STATE_OF_A_RUN


def test_words_and_unread_values_of_options_come_back():
    changes = {"lr": OptionChange("", (0.1, 0.1, None, True, "unread Rate", Unread("Rate")))}
    assert decode_options(encode_options(changes)) == changes


@pytest.mark.parametrize(
    "changed",
    [
        {"more": 1},
        {"digests": {}},
        {"digests": dict.fromkeys(DIGESTS, 3)},
        {"secret": "a" * 201},
        {"step": -1},
        {"options": []},
        {"options": '{"lr": [1, []]}'},
        {"options": '{"lr": ["", [[0.1, 10001]]]}'},
        {"options": '{"lr": ["", [[9223372036854775808, 1]]]}'},
        {"options": '{"lr": ["", [[{"kind": 3}, 1]]]}'},
        {"options": '{"lr": ["", [[{"kind": "a", "more": 1}, 1]]]}'},
        {"facts": [1]},
    ],
    ids=str,
)
def test_other_states_are_refused(changed, tmp_path):
    content = json.dumps({**json.loads(STATE_OF_A_RUN.encode()), **changed}).encode()
    with pytest.raises(ValueError, match=r"a saved state|the options of a step"):
        SavedState.decode(content)
    RunWriter(tmp_path / "run", Header()).close()
    log = JournalWriter(tmp_path / "run" / STATES, new=False)
    log.append(STATE, content)
    log.close()
    with pytest.raises(RecordingError, match=r"states.log: frame 1: (a saved state|the options)"):
        RunFolder.open(tmp_path / "run", PROBES).states()


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"3"])
def test_bytes_that_are_no_mapping_are_refused(content):
    with pytest.raises(ValueError):  # noqa: PT011
        SavedState.decode(content)
