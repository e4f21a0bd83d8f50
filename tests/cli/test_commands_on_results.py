"""``report``, ``diff`` and ``cache``, also on files that are not results."""

import dataclasses
import json
import os
import re

import pytest
from support import specs
from support.record_files import unbundle
from support.results import audit, result, verdict

from dpspec import decimals
from dpspec.engine.differences import Mismatch
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.reporters import page as html
from dpspec.reporters.page import generator
from dpspec.reporters.read_results import extract
from dpspec.results.codec import dump
from dpspec.results.redact import LEFT_OUT_REASON


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(dump(result()), encoding="utf-8")
    return path


def test_no_report_replaces_the_result_that_it_is_of(dpspec, stored, tmp_path):
    before = stored.read_bytes()
    (tmp_path / "link.json").symlink_to(stored)
    for output in (stored, tmp_path / "link.json"):
        ended = dpspec("report", stored, "--format", "markdown", "-o", output)
        assert ended.code == 2
        assert "would replace the result" in ended.err
    assert stored.read_bytes() == before


@pytest.mark.parametrize(
    ("command", "content", "says"),
    [
        *((command, b"[1]", "not a dpspec result") for command in ("report", "verify", "diff")),
        ("report", None, "cannot read"),
        ("verify", b"", "not JSON"),
        ("diff", b"\xff\xfe\x00", "not a text file"),
        ("report", b'{"schema": "dpspec/result/v2"}', "is missing"),
        ("verify", b'{"schema": "dpspec/result/v2", "x": NaN}', "NaN"),
        ("diff", b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_result_is_a_usage_error(dpspec, tmp_path, content, says, command):
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    ended = dpspec(command, path, *([path] if command == "diff" else []))
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", ["report", "verify", "diff"])
def test_what_is_no_file_is_not_opened(dpspec, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        ended = dpspec(command, path, *([path] if command == "diff" else []))
        assert ended.code == 2
        assert f"{path}: not a regular file" in ended.err


def test_diff(dpspec, tmp_path, stored):
    changed = result(audit(verdicts=(verdict(verdict="refuted", upper=2.5, lower=3.5),)))
    (tmp_path / "after.json").write_text(dump(changed), encoding="utf-8")
    assert dpspec("diff", stored, stored).out == "no change\n"
    ended = dpspec("diff", stored, "after.json")
    assert ended.code == 1
    assert "- demo / one: verdict proved -> refuted\n" in ended.out
    ended = dpspec("diff", "after.json", stored)
    assert ended.code == 0
    assert "+ demo / one: verdict refuted -> proved\n" in ended.out


def test_verify_tells_what_was_left_out_from_what_differs(dpspec, stored, monkeypatch):
    without = result(audit(verdicts=(verdict(left_out=True, reason=LEFT_OUT_REASON, upper=None, lower=None),)))
    stored.write_text(dump(without), encoding="utf-8")
    omitted = "depends on values that this result omits"
    gone = Mismatch("demo", "the verdict of one", "proved", omitted, differs=False, claims=("one",))
    monkeypatch.setattr("dpspec.engine.verify.verify", lambda *args, **options: (gone,))
    ended = dpspec("verify", stored)
    assert ended.code == 7
    first, counted, last, unverified = ended.out.splitlines()
    assert counted.startswith("store .dpspec/store: 0 of 1 trials found")
    assert first.startswith(f"demo: the verdict of one (proved) was not recomputed: {omitted}")
    assert unverified.startswith("not verified, because a result does not imply it: the measurements of 1 trial, ")
    assert last == f"{stored}: could not be recomputed: 1 of 1 verdict"
    wrong = dataclasses.replace(gone, what="confidence", before="0.9", after="0.95", differs=True, claims=())
    monkeypatch.setattr("dpspec.engine.verify.verify", lambda *args, **options: (gone, wrong))
    ended = dpspec("verify", stored)
    assert ended.code == 1
    assert "recomputed: 0.95\n" in ended.out
    assert f"\n1 value of {stored} differs from the recomputation\n" in ended.out


SPEC = specs.BOUNDS


def test_verify_names_what_was_edited_in_a_report(dpspec, tmp_path):
    (tmp_path / "small.yaml").write_text(SPEC, encoding="utf-8")
    loaded = load_specs([tmp_path / "small.yaml"], load_catalog())
    assert loaded.ok, loaded.diagnostics
    found = run(loaded.specs, load_catalog(), store=Store(tmp_path / "store"), device="cpu")
    page = html.render(found)
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    good = dpspec("verify", path)
    assert good.code == 0, good.out
    assert "all recomputed values equal the recorded ones" in good.out

    (verdict,) = found.audits[0].verdicts
    shown = f"at most {decimals.upper(verdict.upper)}"
    assert shown in page
    path.write_text(page.replace(shown, "at most 0.5"), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 1
    said = re.escape(shown)
    assert re.search(rf"the page differs from its result in line \d+\n    shown: .*at most 0.5.*\n.*{said}", ended.out)

    inside = json.loads(extract(page))
    inside["audits"][0]["verdicts"][0]["upper"] = 1.0
    bare = tmp_path / "report.json"
    bare.write_text(json.dumps(inside), encoding="utf-8")
    ended = dpspec("verify", bare)
    assert ended.code == 1
    assert "verdicts[0].upper (one)" in ended.out
    assert f"recomputed: {verdict.upper}" in ended.out

    path.write_text(page.replace(generator(), "dpspec 0.0.1"), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 7
    assert "the page could not be compared: rendered by dpspec 0.0.1, and this is dpspec" in ended.out


@pytest.mark.parametrize("name", ["report.html", "REPORT.HTM", "report.svg", "report.md"])
def test_a_bare_result_that_a_browser_would_show_as_a_page_is_refused(dpspec, tmp_path, name):
    """Its strings may contain any markup, so that the screen could show unverified text."""
    (tmp_path / "small.yaml").write_text(SPEC, encoding="utf-8")
    assert dpspec("run", tmp_path / "small.yaml", "--bounds-only", "--report", f"json={tmp_path / 'r.json'}").code == 0
    forged = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    forged["audits"][0]["document"]["description"] = "<style>body{font-size:0}</style><h1>epsilon 0.1</h1><!--"
    path = tmp_path / name
    path.write_text(json.dumps(forged), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 2
    assert "must not end in" in ended.err
    path = path.rename(tmp_path / "report")
    assert dpspec("verify", path).code == 0


def test_verify_counts_the_trials_of_the_store(dpspec, counting, tmp_path):
    assert dpspec("run", counting, "--store", "kept", "--report", "json=r.json").code == 0
    full = dpspec("verify", "r.json", "--store", "kept")
    assert (full.code, "store kept: 5 of 5 trials found, 0 damaged" in full.out) == (0, True)
    unbundle(tmp_path / "kept")
    records = sorted((tmp_path / "kept").glob("trials/*/*/record.json"))
    for count in (2, 5):
        for record in records[:count]:
            record.write_bytes(record.read_bytes()[:-9])
        ended = dpspec("verify", "r.json", "--store", "kept")
        assert f"store kept: {5 - count} of 5 trials found, {count} damaged" in ended.out
        assert ended.code == (7 if count == 5 else 0)
    missing = dpspec("verify", "r.json", "--store", "nowhere")
    assert (missing.code, "store nowhere: 0 of 5 trials found, 0 damaged: it does not exist" in missing.out) == (
        7,
        True,
    )
    assert dpspec("verify", "r.json").code == 0


def test_verify_with_a_key_takes_no_trial_for_vouched_that_its_seal_is_not_on(dpspec, counting, tmp_path):
    """An attacker with write access to a store or a result cannot seal a trial: unsealed trials exit with 7."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "other").write_bytes(b"o" * 32)
    sealed, bare = ("--store", "sealed", "--store-key", "key"), ("--store", "bare")
    assert dpspec("run", counting, *sealed, "--report", "json=sealed.json", "--internal").code == 0
    assert dpspec("run", counting, *bare, "--report", "json=bare.json", "--internal").code == 0
    assert dpspec("verify", "sealed.json", *sealed).code == 0
    assert dpspec("verify", "bare.json", *bare).code == 0
    for options in ((*bare, "--store-key", "key"), ("--store", "nowhere", "--store-key", "key")):
        ended = dpspec("verify", "bare.json", *options)
        assert ended.code == 7
        assert "the store has no seal of" in ended.out
    assert dpspec("verify", "sealed.json", "--store", "sealed", "--store-key", "other").code == 7
