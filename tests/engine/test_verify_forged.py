"""What was once forged without ``verify`` saying so: each ends with 1, or with 7 where nothing could be recomputed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forger.bench import Bench
from support.forger.pairs import LEFT_OUT

from dpspec.engine.judging.judge import judge
from dpspec.engine.judging.judge_input import Concluded
from dpspec.engine.redact import redact
from dpspec.engine.results import codec
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog
from dpspec.reporters import html
from dpspec.reporters.html.page import generator


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("forged"))
    with bench.remembering():
        yield bench


def verdict_of(document: Any, claim: str) -> Any:
    return next(verdict for verdict in document["audits"][0]["verdicts"] if verdict["claim"] == claim)


def test_a_verdict_cannot_rest_on_what_bounds_do_not_leave_out(bench: Bench) -> None:
    """Where nothing was trained, what was left out of a result is known to the last value."""
    document = json.loads(codec.dump(bench.result("group", trained=False)))
    verdict_of(document, "two").update(
        verdict="proved", reason=LEFT_OUT, upper=None, upper_finding=None, p_value=None, expected=False
    )
    document["audits"][0]["left_out"] = {"per-record": 1}
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "objected"
    assert "verdicts[1].verdict (claim two)" in said
    assert "left_out.per-record" in said


@pytest.mark.parametrize("left_out", [{"per-record": 1}, {"data-dependent": 99}, {"public": 1}, {"secret": 1}])
def test_where_the_data_is_public_more_cannot_have_been_left_out_unseen(bench: Bench, left_out: Any) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=True)))
    document["audits"][0]["left_out"] = left_out
    verdict_of(document, "two").update(verdict="supported", reason=LEFT_OUT, upper=None, upper_finding=None)
    ended, _ = bench.ends(json.dumps(document), str(bench.folder / "store"))
    assert ended == "objected"
    assert bench.ends(json.dumps(document), "nowhere")[0] in ("objected", "not recomputed")


def test_a_metric_that_was_left_out_is_not_as_recorded(bench: Bench) -> None:
    shown = redact(bench.result("group", trained=True, public=False))
    document = json.loads(codec.dump(shown))
    verdict = verdict_of(document, "useful")
    assert verdict["reason"] == LEFT_OUT
    other = "supported" if verdict["verdict"] == "refuted" else "refuted"
    verdict["verdict"] = other
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "not recomputed"
    assert f"the verdict of useful ({other}) was not recomputed" in said
    assert re.search(r"could not be recomputed: 1 of 3 verdicts and \d other values\n$", said)
    assert "every recomputed value is as recorded" not in said
    # The store has the evidence, and with it the verdict.
    assert bench.ends(json.dumps(document), str(bench.folder / "store"))[0] == "objected"
    assert bench.ends(codec.dump(shown), str(bench.folder / "store"))[0] == "passed"


@pytest.mark.parametrize("public", [True, False])
def test_a_finding_cannot_be_added_where_the_arrays_are_missing(bench: Bench, public: bool) -> None:
    """Not even by somebody who judges all claims anew with it."""
    result = bench.result("per-instance", trained=True, public=public)
    (audit,) = result.audits
    bound = next(one for one in audit.findings if one.bound == "upper" and "delta" in one.at)
    findings = (*audit.findings, dataclasses.replace(bound, rigor="certified", value=0.001, lower=None))
    spec = from_document(audit.document, load_catalog())
    (judged,) = judge([Concluded(spec=spec, findings=findings, checks=audit.checks, evidence=audit.evidence)])
    forged = dataclasses.replace(audit, findings=judged.findings, verdicts=judged.verdicts)
    assert 0.001 in [verdict.upper for verdict in forged.verdicts]
    text = codec.dump(dataclasses.replace(result, audits=(forged,)))
    ended, said = bench.ends(text, "nowhere")
    assert ended == "not recomputed"
    assert "what follows from the trials (2 trials) was not recomputed" in said
    assert "could not be recomputed: 3 of 3 verdicts" in said
    assert bench.ends(text, str(bench.folder / "store"))[0] == "objected"


def test_evidence_that_no_audit_yields_is_no_bug(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("per-instance", trained=True)))
    document["audits"][0]["evidence"][0]["kind"] = ""
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "objected"
    assert "verdicts[2].p_value (claim useful)" in said


@pytest.fixture(scope="module")
def page(bench: Bench) -> str:
    return html.render(bench.result("group", trained=False))


@pytest.mark.parametrize(
    ("old", "new", "ends"),
    [
        ("</style>", '.verdict.open{font-size:0}.verdict.open::after{content:"proved"}</style>', "objected"),
        (
            '<span class="verdict open">',
            '<svg viewBox="0 0 60 10"><text y="8">proved</text></svg><span class="verdict open" hidden>',
            "objected",
        ),
        (generator(), "dpspec 0.0.7", "not recomputed"),
        (f'<meta name="generator" content="{generator()}">', "", "not recomputed"),
        ("<body>", "<body><!-- proved -->", "objected"),
    ],
)
def test_a_page_is_what_its_result_makes_or_it_is_said(bench: Bench, page: str, old: str, new: str, ends: str) -> None:
    assert bench.ends(page, "nowhere")[0] == "passed"
    assert old in page
    ended, said = bench.ends(page.replace(old, new, 1), "nowhere")
    assert ended == ends
    assert "every recomputed value is as recorded" not in said


def test_two_audits_of_one_name_and_trials_in_another_order_are_no_result(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=False)))
    ended, said = bench.ends(json.dumps({**document, "audits": document["audits"] * 2}), "nowhere")
    assert ended == "objected"
    assert "an invocation has one audit of a name" in said
    trained = json.loads(codec.dump(bench.result("rero", trained=True)))
    trained["audits"][0]["trials"].reverse()
    assert bench.ends(json.dumps(trained), "nowhere")[0] == "objected"


def test_what_is_not_verified_is_told_every_time(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=True)))
    document["created"] = "1999-12-31"
    document["environment"]["numpy"] = "0.1"
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "passed"
    assert "not verified, because nothing in a result implies it: what 1 trial measured; when it was made; by" in said


def test_a_key_that_stands_twice_is_refused(tmp_path: Path, bench: Bench) -> None:
    text = codec.dump(bench.result("group", trained=False))
    ended, said = bench.ends(text.replace('"verdict": "open"', '"verdict": "proved", "verdict": "open"'), "nowhere")
    assert ended == "refused"
    assert "the key 'verdict' stands twice in one mapping" in said
