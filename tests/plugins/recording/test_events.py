"""Events and record numbers as bytes, and bytes that no recorder writes."""

import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.errors import RecordingError
from dpspec_recording.folder.events import (
    DIGESTS,
    MOST_RECORDS,
    Header,
    InternalStep,
    OptionChange,
    RankStep,
    SavedState,
    Unread,
    decode_internal,
    decode_members,
    encode,
    encode_members,
)
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.writer import INTERNAL, LogWriter, RunWriter
from dpspec_recording.observers.all import OBSERVERS


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


STEP = InternalStep(step=1, largest=0.5, members=np.array([2, 7]), rank=RANK)


def test_a_step_is_read_as_it_was_written():
    found = decode_internal(encode(STEP))
    assert (found.step, found.largest, found.members.tolist()) == (1, 0.5, [2, 7])
    assert np.isnan(found.middle)
    assert (found.rank.own == RANK.own).all()
    assert (found.rank.noise.dtype, found.rank.noise.tolist()) == (np.float16, [8.0, 9.0])


@given(st.integers(0, 300), st.integers(0, 255))
def test_damaged_observations_are_read_or_refused(place, value):
    data = bytearray(encode(STEP))
    data[place % len(data)] = value
    for content in (bytes(data), bytes(data[: place % len(data)])):
        try:
            decode_internal(content)
        except ValueError:
            continue


STATE_OF_A_RUN = SavedState(
    step=7,
    digests=dict.fromkeys(DIGESTS, "0f"),
    accounted=7,
    fresh=False,
    options={"lr": OptionChange("start", (0.1, 0.2)), "betas[0]": OptionChange("", (0.9, 0.9))},
    secret="ab",
)


def test_a_state_is_read_as_it_was_written():
    assert decode_internal(encode(STATE_OF_A_RUN)) == STATE_OF_A_RUN


def test_words_and_unread_values_of_options_come_back():
    values = (0.1, 0.1, None, True, 1, "unread Rate", Unread("Rate"))
    state = SavedState(step=7, digests={}, options={"lr": OptionChange("", values)})
    (found,) = decode_internal(encode(state)).options.values()
    assert repr(found.values) == repr(values)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"digests": [1]}, "$.digests"),
        ({"digests": dict.fromkeys(DIGESTS, 3)}, "$.digests[...]"),
        ({"secret": "a" * 401}, "$.secret"),
        ({"step": -1}, "$.step"),
        ({"options": []}, "$.options"),
        ({"options": {"lr": [1, []]}}, "$.options[...]"),
        ({"options": {"lr": {"by": "", "values": [0.1] * 10_001}}}, "$.options[...].values"),
        ({"options": {"lr": {"by": "", "values": [{"kind": 3}]}}}, "$.options[...].values[0].kind"),
        ({"facts": [1]}, "$.facts"),
    ],
    ids=str,
)
def test_other_states_are_refused_with_their_place(changed, place, tmp_path):
    RunWriter(tmp_path / "run", Header()).close()
    log = LogWriter(tmp_path / "run" / INTERNAL, new=False)
    log.append(msgspec.msgpack.decode(encode(STATE_OF_A_RUN)) | changed)
    log.close()
    with pytest.raises(RecordingError, match=rf"internal.log: event 2 at byte \d+: .*{re.escape(place)}"):
        RunFolder.open(tmp_path / "run", OBSERVERS).states()
