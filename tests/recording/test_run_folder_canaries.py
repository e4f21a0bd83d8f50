"""The folder of a planted run as a spec judges it, and as somebody changed it: what no recorder writes is refused."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checked_runs import Question, audit_by_spec, check_run
from support.plain_loop import rebuilt

from dpspec.cli.app import main
from dpspec.errors import ExitCode, RecordingError
from dpspec.recording.folder.run_folder import CANARIES, INTERNAL, MARK
from dpspec.recording.folder.run_folder import STEPS as STEPS_LOG

DELTA = 1e-5


def checked(folder, **question):
    return check_run(folder, Question(**{"delta": DELTA, **question}))


def test_a_spec_judges_a_planted_run_and_verify_compares_its_scores(copy, monkeypatch, capsys):
    code, audit = audit_by_spec(copy)
    monkeypatch.chdir(copy.parent)
    (bound,) = [one for one in audit["findings"] if one["bound"] == "lower" and one["rigor"] == "statistical"]
    assert (code, bound["value"]) == (0, checked(copy).canaries.lower)
    assert (bound["scope"]["adjacency"], bound["scope"]["access"]) == ("zero-out", "final-model")
    assert audit["evidence"][0]["statistics"]["canaries"] == 400
    copy.rename("elsewhere")
    assert main(["verify", "result.json"]) == 7
    Path("elsewhere").rename(copy)
    (copy / CANARIES).write_bytes(b"other")
    assert main(["verify", "result.json"]) == 1
    capsys.readouterr()


# A folder that somebody changed.


def archive(content):
    written = io.BytesIO()
    np.savez(written, **{name: value for name, value in content.items() if value is not None})
    return written.getvalue()


def refused(folder, message, capsys):
    with pytest.raises(RecordingError, match=message) as error:
        checked(folder)
    assert error.value.exit_code == ExitCode.INVALID_SPEC
    assert main(["check", str(folder), "--epsilon", "2.5"]) == 3
    assert str(folder) in "".join(capsys.readouterr().err.split("\n"))


OTHER = "its coins are not those fixed before training"
SECRET = np.zeros(32, dtype=np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {**c, "coin": 1 - c["coin"]}, OTHER),
        (lambda c: {**c, "coin": c["coin"] * 2}, OTHER),
        (lambda c: {**c, "coin": c["coin"] + np.nan}, OTHER),
        (lambda c: {**c, "secret": SECRET}, OTHER),
        (lambda c: {**c, "secret": SECRET[:5]}, OTHER),
        (lambda c: {**c, "secret": SECRET + 0.5}, OTHER),
        (lambda c: {**c, "secret": None}, "has no column 'secret'"),
        (lambda c: {**c, "score": c["score"] * np.nan}, "a score is NaN"),
        (lambda c: {**c, "score": None}, "has no column 'score'"),
        (lambda c: {**c, "score": c["score"][:-1]}, "equal lengths"),
        (lambda c: {**c, "score": c["score"][:9], "coin": c["coin"][:9]}, "has 9 canaries instead of 400"),
        (lambda c: {**c, "score": c["score"].astype(object)}, "dtype object"),
        (lambda c: {**c, "score": np.zeros((400, 2))}, "must have numbers and 1 axis"),
        (lambda c: {**c, "score": np.zeros(2 * 10**6), "coin": np.zeros(2 * 10**6)}, "at most|more than|larger"),
    ],
)
def test_scores_that_no_recorder_writes_are_refused_under_a_sound_chain(change, message, scored, tmp_path, capsys):
    with np.load(scored[0] / CANARIES) as file:
        content = change({name: file[name] for name in file.files})
    refused(rebuilt(scored[0], tmp_path / "made", scores=archive(content)), message, capsys)


def test_huge_scores_are_scores(scored, tmp_path):
    with np.load(scored[0] / CANARIES) as file:
        content = {name: file[name] for name in file.files}
    wild = np.where(content["coin"] == 1, 1e308, -math.inf)
    wild[0] = math.inf
    made = rebuilt(scored[0], tmp_path / "made", scores=archive({**content, "score": wild}))
    found = checked(made)
    assert found.canaries.lower > 3.0
    assert found.exit_code == ExitCode.UNEXPECTED


@pytest.mark.parametrize(
    ("content", "changed", "message"),
    [
        (None, {"canaries": 399}, "reports 399 scored canaries"),
        (None, {"left_out": 0}, OTHER),
        (None, {"canary_seed": 6}, OTHER),
        (b"", {}, CANARIES),
        (b"PK\x03\x04", {}, CANARIES),
        (b"\x80\x04.", {}, CANARIES),
    ],
)
def test_scores_that_do_not_fit_the_header_are_refused(content, changed, message, scored, tmp_path, capsys):
    content = (scored[0] / CANARIES).read_bytes() if content is None else content
    canaries = changed.pop("canaries", 400)
    made = rebuilt(
        scored[0],
        tmp_path / "made",
        lambda header, *steps: (replace(header, **changed), *steps),
        scores=content,
        canaries=canaries,
    )
    refused(made, message, capsys)


@pytest.mark.parametrize(
    ("key", "value"),
    [("canaries", -1), ("canaries", 10**9), ("left_out", 500), ("canary_seed", "5"), ("canaries", 600)],
)
def test_a_header_with_impossible_canaries_is_refused(key, value, copy, capsys):
    header = json.loads((copy / MARK).read_text())
    (copy / MARK).write_text(json.dumps({**header, key: value}))
    refused(copy, "run.json", capsys)


def test_scores_that_were_kept_back_or_cut_short_are_told_of(copy, capsys):
    (copy / CANARIES).rename(copy.parent / "kept.npz")
    found = checked(copy, epsilon=2.5)
    assert (found.canaries, found.verdict, found.exit_code) == (None, "open", ExitCode.UNEXPECTED)
    main(["check", str(copy), "--epsilon", "2.5"])
    assert "the folder lacks their scores" in " ".join(capsys.readouterr().out.split())
    (copy.parent / "kept.npz").rename(copy / CANARIES)
    steps = copy / STEPS_LOG
    steps.write_bytes(steps.read_bytes()[:-5])
    refused(copy, "scoring was cut short", capsys)
    (copy / CANARIES).unlink()
    (copy / INTERNAL).unlink()
    main(["check", str(copy), "--epsilon", "2.5"])
    assert "400 canaries were inserted and not scored" in " ".join(capsys.readouterr().out.split())


def test_a_file_of_scores_that_was_changed_or_is_a_link_is_refused(copy, capsys):
    content = archive({"coin": np.ones(400), "score": np.ones(400), "secret": SECRET})
    (copy / CANARIES).write_bytes(content)
    refused(copy, f"{CANARIES}: its digest is not the one", capsys)
    (copy / CANARIES).unlink()
    (copy / CANARIES).symlink_to("/dev/zero")
    refused(copy, "not a regular file", capsys)
