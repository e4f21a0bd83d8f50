"""The folder of a planted run as a spec judges it, and as somebody changed it: what no recorder writes is refused."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.checked_runs import Question, check_run

from dpspec.cli.app import main
from dpspec.errors import ExitCode, RecordingError
from dpspec.recording.folder.run_folder import CANARIES, INTERNAL, MARK, RunFolder, RunWriter
from dpspec.recording.folder.run_folder import STEPS as STEPS_LOG

DELTA = 1e-5


def checked(folder, **question):
    return check_run(folder, Question(**{"delta": DELTA, **question}))


def test_a_spec_judges_the_recording_of_a_planted_run_and_holds_its_scores_fast(copy, monkeypatch, capsys):
    monkeypatch.chdir(copy.parent)
    assert main(["new", "spec", "found", "--from", "run"]) == 0
    assert main(["run", "found.yaml", "--report", "json=result.json"]) == 0
    assert main(["verify", "result.json"]) == 0
    audit = json.loads(Path("result.json").read_text())["audits"][0]
    (bound,) = [one for one in audit["findings"] if one["bound"] == "lower" and one["rigor"] == "statistical"]
    assert bound["value"] == checked(copy).canaries.lower
    assert (bound["scope"]["adjacency"], bound["scope"]["access"]) == ("zero-out", "final-model")
    assert audit["evidence"][0]["statistics"]["canaries"] == 400
    copy.rename("elsewhere")
    assert main(["verify", "result.json"]) == 7
    Path("elsewhere").rename(copy)
    (copy / CANARIES).write_bytes(b"other")
    assert main(["verify", "result.json"]) == 1
    capsys.readouterr()


# A folder that somebody changed.


def rewritten(folder, **arrays):
    """The file of scores with other arrays."""
    with np.load(folder / CANARIES) as file:
        content = {name: file[name] for name in file.files} | arrays
    (folder / CANARIES).write_bytes(archive(content))


def archive(content):
    written = io.BytesIO()
    np.savez(written, **{name: value for name, value in content.items() if value is not None})
    return written.getvalue()


def rebuilt(folder, place, content, canaries=400, left_out=None):
    """A folder whose chain of digests is sound, around a file of scores that no recorder wrote."""
    from dataclasses import replace

    read = RunFolder.open(folder)
    public = [one for one in read.steps() if hasattr(one, "drawn")]
    header = read.header if left_out is None else replace(read.header, left_out=left_out)
    writer = RunWriter(place, header)
    for step, kept in zip(public, read.internal(), strict=True):
        writer.write((step, kept))
    writer.end({"seconds": 1.0})
    writer.scored(content, canaries=canaries, final=True)
    return place


def refused(folder, message, capsys):
    with pytest.raises(RecordingError, match=message) as error:
        checked(folder)
    assert error.value.exit_code == ExitCode.INVALID_SPEC
    assert main(["check", str(folder), "--epsilon", "2.5"]) == 3
    assert str(folder) in "".join(capsys.readouterr().err.split("\n"))


def test_a_file_of_scores_that_was_changed_is_refused(copy, capsys):
    with np.load(copy / CANARIES) as file:
        coins = file["coin"].copy()
    coins[7] ^= 1
    rewritten(copy, coin=coins)
    refused(copy, f"{CANARIES}: its digest is not the one", capsys)


SECRET = np.zeros(32, dtype=np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {**c, "coin": 1 - c["coin"]}, "coins are not those fixed before training"),
        (lambda c: {**c, "coin": c["coin"] * 2}, "coins are not those fixed before training"),
        (lambda c: {**c, "coin": c["coin"] + np.nan}, "coins are not those fixed before training"),
        (lambda c: {**c, "secret": SECRET}, "follow from other bytes"),
        (lambda c: {**c, "secret": SECRET[:5]}, "secret must be 32 bytes"),
        (lambda c: {**c, "secret": SECRET + 0.5}, "secret must be 32 bytes"),
        (lambda c: {**c, "secret": None}, "has no column 'secret'"),
        (lambda c: {**c, "score": c["score"] * np.nan}, "a score is NaN"),
        (lambda c: {**c, "score": None}, "has no column 'score'"),
        (lambda c: {**c, "score": c["score"][:-1]}, "equal lengths"),
        (lambda c: {**c, "score": c["score"][:9], "coin": c["coin"][:9]}, "has 9 canaries instead of 400"),
        (lambda c: {**c, "score": c["score"].astype(object)}, "dtype object"),
        (lambda c: {**c, "score": np.zeros((400, 2))}, "must have 1 axis"),
        (lambda c: {**c, "score": np.zeros(2 * 10**6), "coin": np.zeros(2 * 10**6)}, "at most|more than|larger"),
    ],
)
def test_scores_that_no_recorder_writes_are_refused_under_a_sound_chain(change, message, scored, tmp_path, capsys):
    with np.load(scored[0] / CANARIES) as file:
        content = change({name: file[name] for name in file.files})
    refused(rebuilt(scored[0], tmp_path / "made", archive(content)), message, capsys)


def test_huge_scores_are_scores(scored, tmp_path):
    with np.load(scored[0] / CANARIES) as file:
        content = {name: file[name] for name in file.files}
    wild = np.where(content["coin"] == 1, 1e308, -math.inf)
    wild[0] = math.inf
    made = rebuilt(scored[0], tmp_path / "made", archive({**content, "score": wild}))
    found = checked(made)
    assert found.canaries.lower > 3.0
    assert found.exit_code == ExitCode.UNEXPECTED


def test_counts_that_do_not_agree_are_refused(scored, tmp_path, capsys):
    content = (scored[0] / CANARIES).read_bytes()
    refused(rebuilt(scored[0], tmp_path / "a", content, canaries=399), "reports 399 scored canaries", capsys)
    refused(rebuilt(scored[0], tmp_path / "b", content, left_out=0), "the header says 0", capsys)
    for number, text in enumerate((b"", b"PK\x03\x04", b"\x80\x04."), start=2):
        refused(rebuilt(scored[0], tmp_path / f"{number}", text), CANARIES, capsys)


@pytest.mark.parametrize(
    ("key", "value"),
    [("canaries", -1), ("canaries", 10**9), ("left_out", 500), ("canary_seed", "5"), ("canaries", 600)],
)
def test_a_header_with_impossible_canaries_is_refused(key, value, copy, capsys):
    header = json.loads((copy / MARK).read_text())
    (copy / MARK).write_text(json.dumps({**header, key: value}))
    refused(copy, "run.json", capsys)


def test_a_seed_that_the_coins_do_not_follow_from_is_refused(scored, tmp_path, capsys):
    from dataclasses import replace

    read = RunFolder.open(scored[0])
    writer = RunWriter(tmp_path / "made", replace(read.header, canary_seed=6))
    for step, kept in zip([s for s in read.steps() if hasattr(s, "drawn")], read.internal(), strict=True):
        writer.write((step, kept))
    writer.end({})
    writer.scored((scored[0] / CANARIES).read_bytes(), canaries=400, final=True)
    refused(tmp_path / "made", "follow from other bytes", capsys)


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


def test_links_and_pipes_are_not_followed(copy, capsys):
    (copy / CANARIES).unlink()
    (copy / CANARIES).symlink_to("/dev/zero")
    refused(copy, "not a regular file", capsys)
