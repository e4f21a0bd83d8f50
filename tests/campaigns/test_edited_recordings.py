"""Edited recordings with rebuilt checksums: each is judged or refused, and none proves half of its epsilon.

CAMPAIGN=500 in the environment makes 500 edits.
"""

import hashlib
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.drawn_edits import edited_bytes, edited_json
from support.opacus_training import Training

from dpspec.errors import DpspecError, ExitCode
from dpspec.registry.loader import load_catalog
from dpspec_recording.folder.run_folder import END, INTERNAL, MARK, SCORED, STATES, STEPS, JournalWriter, read_frames
from dpspec_recording.folder.weights import WEIGHTS
from dpspec_recording.judge.check import check_run
from dpspec_recording.judge.run_claim import RunClaim

DELTA = 1e-5


def edit(source: Path, folder: Path, data: st.DataObject) -> None:
    """Copy a recording, change one value, and rebuild the checksums and the digest that depend on it."""
    header = (source / MARK).read_bytes()
    frames = {name: list(read_frames(source / name)) for name in (INTERNAL, STATES, STEPS)}
    names = [MARK, *(name for name, part in frames.items() if part), STEPS, STEPS]
    names += [WEIGHTS] if (source / WEIGHTS).exists() else []
    file = data.draw(st.sampled_from(names), "file")
    folder.mkdir()
    if file == MARK:
        header = edited_json(header, data)
    (folder / MARK).write_bytes(header)
    digests: dict[bytes, bytes] = {}
    if (source / WEIGHTS).exists():
        weights = (source / WEIGHTS).read_bytes()
        changed = edited_json(weights, data) if file == WEIGHTS else weights
        (folder / WEIGHTS).write_bytes(changed)
        digests[hashlib.sha256(weights).hexdigest().encode()] = hashlib.sha256(changed).hexdigest().encode()
    for name, part in frames.items():
        journal = JournalWriter(folder / name)
        chosen = data.draw(st.integers(0, len(part) - 1), "frame") if file == name else None
        for number, frame in enumerate(part):
            payload = frame.payload
            for old, new in digests.items() if name == STEPS else ():
                payload = payload.replace(old, new)
            if number == chosen:
                is_json = name == STEPS and frame.kind in (END, SCORED)
                payload = edited_json(payload, data) if is_json else edited_bytes(payload, data)
            journal.append(frame.kind, payload)
        journal.close()


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
