"""The section of an executed training: any plugin fills it, each report shows it, and a deviation makes parts void."""

import json
import re

import pytest
from support import results as factory

from dpspec.contract import FrozenMap
from dpspec.contract.executed import ExecutedOrigin, ExecutedSection, SectionGroup
from dpspec.contract.findings import Channel
from dpspec.contract.results import Conformance, Result
from dpspec.errors import ResultError
from dpspec.reporters import markdown, page, terminal
from dpspec.results import codec
from dpspec.results.void_bounds import without_void_bounds

#: What a plugin for the logs of a cluster might say, in words that no report knows.
SECTION = ExecutedSection(
    ran="12 jobs of a cluster",
    groups=(
        SectionGroup(
            title="Jobs",
            columns=("job", "status", "what the log shows"),
            rows=(Channel(name="job-7", status="open", text="its log ends early"),),
        ),
        SectionGroup(title="Billing", sentences=("epsilon 3.25 was billed",), if_deviating=("nothing was billed",)),
    ),
    brief=SectionGroup(title="THE CLUSTER", sentences=("12 jobs",), if_deviating=("12 jobs, of other code",)),
    closing="The log is complete.",
    open=(Channel(name="job-7", status="open", text="ask for its log"),),
    confirm=("The cluster has one user.",),
    answers=FrozenMap({"not-recorded": "The log has no names."}),
    origin=ExecutedOrigin(began="2026-11-01", versions=FrozenMap({"torch": "2.13"}), machine="a cluster", records=900),
)

RENDERERS = {
    "terminal": terminal.render,
    "markdown": markdown.render,
    "page": lambda result: re.sub(r"<script.*?</script>", "", page.render(result), flags=re.DOTALL),  # the whole result
}


def result(status: str = "no-deviation-found") -> Result:
    conformance = Conformance(status=status, expect="no-deviation-found", expected=False, reason="update")  # type: ignore[arg-type]
    values = {"recording": SECTION, "conformance": conformance, "trials": (), "planned_trials": 0}
    return factory.result(factory.audit("jobs", **values))


def shown(text: str) -> str:
    return " ".join(text.replace("\\", "").split())


@pytest.mark.parametrize("name", RENDERERS)
def test_each_report_shows_a_section_that_it_knows_nothing_of(name: str) -> None:
    text = shown(RENDERERS[name](result()))
    for expected in (
        "Jobs",
        "job-7",
        "its log ends early",
        "Billing",
        "epsilon 3.25 was billed",
        "The log has no names.",
    ):
        assert expected in text


def test_the_brief_report_shows_what_is_open_and_what_ran() -> None:
    text = shown(terminal.render_brief(result()))
    for expected in (
        "OPEN - job-7: ask for its log",
        "THE CLUSTER 12 jobs",
        "The cluster has one user.",
        "The log is complete.",
    ):
        assert expected in text


@pytest.mark.parametrize("name", RENDERERS)
def test_a_deviating_run_shows_no_void_sentence(name: str) -> None:
    text = shown(RENDERERS[name](result("deviates")))
    assert "nothing was billed" in text
    brief = shown(terminal.render_brief(result("deviates")))
    assert "THE CLUSTER 12 jobs, of other code" in brief
    for void in ("3.25 was billed", "The cluster has one user.", "ask for its log"):
        assert void not in text
        assert void not in brief


def test_void_parts_are_removed_once() -> None:
    (audit,) = without_void_bounds(result("deviates")).audits
    assert audit.recording is not None
    assert audit.recording.of_deviating_run() == audit.recording


def test_a_section_is_read_again_and_an_earlier_one_refused() -> None:
    text = codec.dump(result())
    assert codec.load(text) == result()
    data = json.loads(text)
    data["audits"][0]["recording"] = {"steps": 3, "ended": True, "setup": []}
    with pytest.raises(ResultError, match=r"an early 0\.3 checked: run `dpspec check` again"):
        codec.load(json.dumps(data))
