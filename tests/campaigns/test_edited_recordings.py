"""Edited recordings with rebuilt checksums: each is judged or refused, and none proves half of its epsilon.

CAMPAIGN=500 in the environment makes 500 edits.
"""

import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.drawn_edits import edited, edited_bytes
from support.edited_logs import payloads, write_payloads
from support.opacus_training import Training

from dpspec.errors import DpspecError, ExitCode
from dpspec.registry.loader import load_catalog
from dpspec_recording.folder.writer import INTERNAL, PUBLIC
from dpspec_recording.judge.check import check_run
from dpspec_recording.judge.run_claim import RunClaim

DELTA = 1e-5


def edit(source: Path, folder: Path, data: st.DataObject) -> None:
    """Copy a recording, and change one value or some bytes of an event, with the right checksum."""
    folder.mkdir()
    chosen = data.draw(st.sampled_from([PUBLIC, INTERNAL]), "log")
    for name in (PUBLIC, INTERNAL):
        events = payloads(source / name)
        if name == chosen:
            # steps are many; the first event and the last ones have most fields
            number = data.draw(st.sampled_from([0, 1, 2, len(events) // 2, len(events) - 2, len(events) - 1]), "event")
            if data.draw(st.booleans(), "value"):
                changed = edited(msgspec.msgpack.decode(events[number]), data)
                with contextlib.suppress(OverflowError):
                    events[number] = msgspec.msgpack.encode(changed)
            else:
                events[number] = edited_bytes(events[number], data)
        write_payloads(folder / name, events)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A recording, and a claim of half of its epsilon, which is below the certified interval."""
    folder = tmp_path_factory.mktemp("recording") / "run"
    Training(epochs=1).run(folder)
    (audit,) = check_run(folder, RunClaim(delta=DELTA, epsilon=None), load_catalog()).audits
    uppers = [f.value for f in audit.findings if (f.quantity, f.bound) == ("epsilon", "upper")]
    return folder, min(uppers) / 2.0


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_an_edit_is_judged_or_refused_and_proves_nothing_smaller(
    recording: tuple[Path, float], tmp_path: Path, data: st.DataObject
) -> None:
    source, epsilon = recording
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    edit(source, tmp_path / "run", data)
    refused, code, message = None, None, ""
    try:
        code = check_run(tmp_path / "run", RunClaim(delta=DELTA, epsilon=epsilon), load_catalog()).exit_code
    except DpspecError as error:
        refused, message = error.exit_code, str(error)
    event(f"refused with {refused:d}" if refused is not None else f"judged with {code:d}")
    assert "checksum" not in message
    assert refused in (None, ExitCode.USAGE, ExitCode.INVALID_SPEC, ExitCode.NOTHING_TO_RUN)
    assert code is not ExitCode.OK
