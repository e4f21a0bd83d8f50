"""``verify`` on a report alone: it follows as it is, and says which number no longer does where one was edited."""

from __future__ import annotations

import json

from dpspec.engine import numbers
from dpspec.engine.runner import run
from dpspec.engine.store import Store
from dpspec.registry.loader import load_catalog
from dpspec.reporters import html
from dpspec.reporters.html.embed import extract
from dpspec.reporters.html.page import generator
from dpspec.spec.load import load_specs

SPEC = """\
dpspec: 1
name: small
mechanism: {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 1}
data: {kind: declared, records: 100, features: 4, classes: 2}
claims: [{id: one-record, kind: approx-dp, epsilon: 3.0, delta: 1e-5}]
"""


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
    assert "every recomputed value is as recorded" in good.out

    upper = f"{found.audits[0].verdicts[0].upper}"
    number = numbers.upper(found.audits[0].verdicts[0].upper)
    assert f"[none, {number}]" in page
    path.write_text(page.replace(f"[none, {number}]", "[none, 0.5]"), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 1
    assert "the page shows what its result does not say, under 'Every claim with its verdict'" in ended.out
    assert f"shown:       [none, 0.5]\n    its result:  [none, {number}]" in ended.out

    inside = json.loads(extract(page))
    inside["audits"][0]["verdicts"][0]["upper"] = 1.0
    path.write_text(json.dumps(inside), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 1
    assert "verdicts[0].upper (claim one-record)" in ended.out
    assert f"recomputed: {upper}" in ended.out

    path.write_text(page.replace(generator(), "dpspec 0.0.1"), encoding="utf-8")
    ended = dpspec("verify", path)
    assert ended.code == 0
    assert "another version of dpspec wrote it" in ended.out
