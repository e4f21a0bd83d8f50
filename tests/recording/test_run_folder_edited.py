"""Recordings with trailing bytes, a missing log or numbers that no recorder writes: located errors."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checked_runs import Question, check_run
from support.plain_loop import plain_loop

from dpspec.engine.recorded.recorded_run import _summed_norms
from dpspec.errors import RecordingError
from dpspec.recording.folder.run_folder import (
    END,
    INTERNAL,
    MARK,
    STEPS,
    JournalWriter,
    RunFolder,
    _require_sane,
    read_frames,
)
from dpspec.recording.folder.step_record import InternalStep, PublicStep
from dpspec.stats.conformance.noise_tests import log_lower_tail


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "run"
    plain_loop(folder, 12)
    return folder


def read(folder: Path) -> None:
    opened = RunFolder.open(folder)
    list(opened.steps())
    list(opened.internal())


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        *((name, lambda content: content + b"\0" * 7, name) for name in (STEPS, INTERNAL)),
        *((name, lambda content: 2 * content, name) for name in (STEPS, INTERNAL)),
        (STEPS, lambda content: content[:40], "cut"),
        (STEPS, None, "missing"),
    ],
)
def test_logs_of_another_length(sound: Path, tmp_path: Path, name: str, change: Any, words: str) -> None:
    read(sound)
    copy = shutil.copytree(sound, tmp_path / "run")
    content = (copy / name).read_bytes()
    (copy / name).unlink()
    if change is not None:
        (copy / name).write_bytes(change(content))
    with pytest.raises(RecordingError, match=words):
        read(copy)


@pytest.mark.parametrize("name", ["rate", "told_rate"])
def test_subnormal_numbers_are_refused(name: str) -> None:
    _require_sane(PublicStep(step=1, **{name: 0.0}))
    with pytest.raises(ValueError, match=name):
        _require_sane(PublicStep(step=1, **{name: 5e-324}))


def test_the_lower_tail_of_a_subnormal_total() -> None:
    assert log_lower_tail(5e-324, 100) == -math.inf
    assert math.isfinite(log_lower_tail(1e-300, 100))


def without(folder: Path, copy: Path, key: str) -> Path:
    """A copy whose end record lacks a key, with digests that fit."""
    shutil.copytree(folder, copy)
    first = hashlib.sha256((folder / MARK).read_bytes()).digest()
    frames = list(read_frames(folder / STEPS, first, STEPS))
    (copy / STEPS).unlink()
    writer = JournalWriter(copy / STEPS, first)
    for frame in frames:
        end = json.loads(frame.payload) if frame.kind == END else {}
        payload = json.dumps({name: value for name, value in end.items() if name != key}).encode()
        writer.append(frame.kind, payload if frame.kind == END else frame.payload)
    writer.close()
    return copy


#: Keys of the end record that are no evidence of privacy.
INFORMATION = {"error", "history", "seconds", "probe", "probe_failure"}


def test_absent_evidence_is_an_open_channel(sound: Path, tmp_path: Path) -> None:
    question = Question(delta=1e-5, epsilon=100.0)
    end = next(one for one in RunFolder.open(sound).steps() if isinstance(one, Mapping))
    verdicts = {key: check_run(without(sound, tmp_path / key, key), question).verdict for key in end}
    assert {key for key, verdict in verdicts.items() if verdict == "proved"} == INFORMATION


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 9, 50])
def test_the_bound_on_summed_norms(rows: int) -> None:
    norms = torch.rand(rows, dtype=torch.float64)
    quartiles = torch.quantile(norms, torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)) if rows else [0.0] * 4
    named = dict(zip(("lower", "middle", "upper", "largest"), map(float, quartiles), strict=True))
    bound = _summed_norms(InternalStep(step=1, **named), float(rows))
    assert float(norms.sum()) <= bound + 1e-12 <= rows + 1e-9


def test_a_sum_must_not_be_longer_than_the_reported_norms(tmp_path: Path, sound: Path) -> None:
    question = Question(delta=1e-5, epsilon=100.0)
    assert check_run(sound, question).verdict == "proved"
    plain_loop(tmp_path / "run", 12, norm=1e-9)
    found = check_run(tmp_path / "run", question)
    assert found.verdict == "open"
    channel = next(one for one in found.channels if one.name == "sensitivity")
    assert channel.status == "violated"
