"""``verify`` on a report alone: it follows as it is, and says which number no longer does where one was edited."""

from __future__ import annotations

import json

import pytest
from support import specs

from dpspec.engine.results import decimals
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog
from dpspec.reporters import page as html
from dpspec.reporters.page import generator
from dpspec.reporters.read_results import extract

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
    shown = f"[{decimals.lower(verdict.lower)}, {decimals.upper(verdict.upper)}]"
    assert shown in page
    path.write_text(page.replace(shown, "[none, 0.5]"), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 1
    assert "the page differs from its result, under 'Every claim with its verdict'" in ended.out
    assert f"shown:       [none, 0.5]\n    its result:  {shown}" in ended.out

    inside = json.loads(extract(page))
    inside["audits"][0]["verdicts"][0]["upper"] = 1.0
    bare = tmp_path / "report.json"
    bare.write_text(json.dumps(inside), encoding="utf-8")
    ended = dpspec("verify", bare)
    assert ended.code == 1
    assert "verdicts[0].upper (claim one)" in ended.out
    assert f"recomputed: {verdict.upper}" in ended.out

    path.write_text(page.replace(generator(), "dpspec 0.0.1"), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 7
    assert "the page could not be compared: rendered by dpspec 0.0.1, and this is dpspec" in ended.out


@pytest.mark.parametrize("name", ["report.html", "REPORT.HTM", "report.svg", "report.md"])
def test_a_bare_result_that_a_browser_would_show_as_a_page_is_refused(dpspec, tmp_path, name):
    """Its texts may hold any markup: what stands on the screen would be nothing that was verified."""
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


def test_verify_with_a_key_takes_no_trial_for_vouched_that_its_seal_is_not_on(dpspec, counting, tmp_path):
    """Whoever can write to a store, or to a result, cannot seal a trial: what only they vouch for ends with 7."""
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
