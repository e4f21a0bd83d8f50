"""Reports on a run that deviates show no number of its declaration or schedule as if it held."""

import dataclasses
import re
import sys
import types
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import results as factory

from dpspec.cli.app import main
from dpspec.cli.output import parse_reports, write_reports
from dpspec.contract import FrozenMap, Reporter
from dpspec.contract.catalog import Offered
from dpspec.contract.executed import ExecutedSection, SectionGroup
from dpspec.contract.results import Conformance, Result
from dpspec.registry import loader
from dpspec.reporters import ci, deployments_registry, markdown, page, statement, terminal
from dpspec.reporters.figures import figures
from dpspec.results import codec
from dpspec.results.void_bounds import without_void_bounds

#: The upper end of the schedule's epsilon, and of its mu; no other number of the result begins so.
EPSILON, MU = 1.4142, 0.57721


def recorded(status: str = "deviates", **changes: object) -> Result:
    base = factory.audit("run")
    (bound,) = base.findings[:1]
    bounds = tuple(
        dataclasses.replace(bound, quantity=quantity, value=value, lower=None, at=at)
        for quantity, value, at in (("epsilon", EPSILON, FrozenMap({"delta": 1e-5})), ("mu", MU, FrozenMap()))
    )
    verdict = factory.verdict(
        "claim", verdict="open", expected=False, expect=("proved",), quantity="epsilon", claimed=8.0, upper=EPSILON,
        upper_finding=0, provable=EPSILON, reason="Nothing is proved of a run that deviates.", text="epsilon <= 8",
    )  # fmt: skip
    figure, void = f"The schedule has {EPSILON}.", "prv: this is not its cost."
    section = ExecutedSection(
        ran="r",
        groups=(SectionGroup(title="Accountant", sentences=(figure, "a note"), if_deviating=(void, "a note")),),
        brief=SectionGroup(title="WHAT RAN", sentences=("r", figure), if_deviating=("r", void)),
        confirm=("this number says",),
        answers=FrozenMap({"accounting": figure, "verification": "again"}),
        answers_if_deviating=FrozenMap({"accounting": void}),
    )
    conformance = Conformance(status=status, expect="no-deviation-found", expected=False, reason="update")
    values = {
        "findings": bounds, "verdicts": (verdict,), "recording": section, "conformance": conformance, "series": (),
    }  # fmt: skip
    return factory.result(dataclasses.replace(base, **{**values, **changes}))


class _Text(HTMLParser):
    """The text of a page without scripts and the embedded result."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.words += [] if self._hidden else [data]


def page_text(result: Result) -> str:
    parser = _Text()
    parser.feed(page.render(result))
    return " ".join(parser.words)


RENDERERS: dict[str, Callable[[Result], str]] = {
    "page": page_text,
    "first screen": page.first_screen,
    "terminal": terminal.render,
    "brief": terminal.render_brief,
    "markdown": markdown.render,
    "statement": statement.render,
    "registry": deployments_registry.render,
    "junit": ci.render_junit,
    "github": ci.render_github,
}


@pytest.mark.parametrize("changes", [{}, {"recording": None}], ids=["recording", "spec"])
@pytest.mark.parametrize("name", RENDERERS)
def test_no_number_of_the_schedule_is_shown(name: str, changes: dict[str, object]) -> None:
    text = RENDERERS[name](recorded(**changes))
    assert not re.search(r"1\.41|0\.577", text)
    assert "this number" not in text
    assert "instead, which the present values prove" not in text


def test_the_numbers_of_a_run_without_deviation_are_shown() -> None:
    fine = recorded("no-deviation-found")
    assert without_void_bounds(fine) == fine
    assert "1.41" in page_text(fine)
    assert "1.41" in terminal.render(fine)


def test_the_data_keep_all_numbers() -> None:
    assert codec.load(codec.dump(recorded())).audits[0].verdicts[0].upper == EPSILON


def test_a_metric_of_a_run_that_deviates_remains() -> None:
    spec = recorded(recording=None)
    (audit,) = spec.audits
    accuracy = dataclasses.replace(audit.findings[0], quantity="accuracy", bound="estimate", value=0.9, at=FrozenMap())
    useful = factory.verdict("useful", kind="metric", quantity="accuracy", lower=0.9, lower_finding=2, upper=None)
    useful = dataclasses.replace(useful, upper_finding=None)
    changed = dataclasses.replace(audit, findings=(*audit.findings, accuracy), verdicts=(*audit.verdicts, useful))
    (shown,) = without_void_bounds(dataclasses.replace(spec, audits=(changed,))).audits
    assert shown.findings == (accuracy,)
    assert [(verdict.lower, verdict.upper) for verdict in shown.verdicts] == [(None, None), (0.9, None)]


def test_the_lower_bound_of_an_attack_remains() -> None:
    result = recorded()
    (audit,) = result.audits
    attack = dataclasses.replace(
        audit.findings[0], bound="lower", rigor="statistical", value=0.9, confidence=0.95,
        scope=dataclasses.replace(audit.findings[0].scope, pipeline="executed", data="planted"),
    )  # fmt: skip
    verdict = dataclasses.replace(audit.verdicts[0], lower=0.9, lower_finding=2)
    (shown,) = without_void_bounds(
        dataclasses.replace(
            result, audits=(dataclasses.replace(audit, findings=(*audit.findings, attack), verdicts=(verdict,)),)
        )
    ).audits
    assert (shown.findings, shown.verdicts[0].lower, shown.verdicts[0].lower_finding) == ((attack,), 0.9, 0)
    assert (shown.verdicts[0].upper, shown.verdicts[0].provable, list(figures(shown))) == (None, None, [])


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """The foreign formats ``dump`` and ``whole``, which show all that they receive."""

    def render(result: Result, *, internal: bool) -> str:
        return codec.dump(result)

    monkeypatch.setitem(sys.modules, "foreign", types.SimpleNamespace(render=render))
    catalog, formats = loader.load_catalog(), {"dump": False, "whole": True}
    offers = {
        name: Offered(
            provider=Reporter(format=name, summary="x", render="foreign:render", suffix=".txt", void_bounds=whole),
            plugin="foreign",
            distribution="dpspec-foreign",
            version="1.2",
        )
        for name, whole in formats.items()
    }
    catalog = dataclasses.replace(catalog, reporters={**catalog.reporters, **offers})
    monkeypatch.setattr(loader, "load_catalog", lambda: catalog)


@pytest.mark.parametrize("command", ["report", "--report"])
@pytest.mark.parametrize("options", [(), ("--internal",)], ids=["redacted", "internal"])
@pytest.mark.usefixtures("foreign")
def test_a_foreign_format_receives_no_void_bound_unless_it_says_so(
    command: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deviating = recorded(recording=None)
    secret = dataclasses.replace(deviating.audits[0].findings[0], value=0.123456, privacy="data-dependent")
    fine = recorded("no-deviation-found", recording=None, findings=(*deviating.audits[0].findings, secret))

    def received(name: str, result: Result) -> Result:
        if command == "report":
            Path("result.json").write_text(codec.dump(result))
            main(["report", "result.json", "--format", name, "-o", f"{name}.txt", *options])
        else:
            requested = parse_reports([f"{name}={name}.txt"], loader.load_catalog())
            write_reports(requested, result, internal=bool(options))
        return codec.load(Path(f"{name}.txt").read_text())

    (shown,) = received("dump", deviating).audits
    assert (shown.findings, shown.series, shown.remedies) == ((), (), ())
    assert [(verdict.upper, verdict.provable) for verdict in shown.verdicts] == [(None, None)]
    assert shown.conformance.status == "deviates"
    assert received("whole", deviating).audits[0].verdicts[0].upper == EPSILON
    for name in ("dump", "whole"):
        values = [finding.value for finding in received(name, fine).audits[0].findings]
        assert values[0] == EPSILON
        assert (secret.value in values) == bool(options)


def test_bounds_are_removed_once() -> None:
    shown = without_void_bounds(recorded())
    assert without_void_bounds(shown) == shown != recorded()
