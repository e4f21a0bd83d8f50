"""The attack method of the authors' guide, offered by a project: judged, drawn, and assumed by name."""

import math
import re
import sys
from pathlib import Path

import pytest
from scipy.stats import binomtest

from dpspec.contract import Evidence, FrozenMap, Result, Scope
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import PluginError, UsageError
from dpspec.language.load import load_specs
from dpspec.registry import loader
from dpspec.registry import project as project_module
from dpspec.registry.loader import load_catalog, use_project
from dpspec.registry.project import project_files
from dpspec.reporters import terminal
from dpspec.reporters.figures import power
from dpspec.results import codec
from dpspec.stats.attacks import evidence_tests

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-plugin.md"
TEMPLATE = Path(__file__).parents[2] / "dpspec" / "cli" / "plugin_template"

#: A mechanism that concludes with evidence of the method, and a bound from it.
CONCLUDE = """
    def conclude(self, spec, trials):
        rows = [row for trial in trials for group in trial.evidence["groups"] for row in group["levels"]]
        correct = sum(present if level > 0 else absent for level, absent, present in rows)
        guesses = sum(absent + present for _, absent, present in rows)
        evidence = dps.Evidence(
            id="guesses",
            kind="fair-guesses",
            statistics=dps.FrozenMap({"guesses": guesses, "correct": correct}),
            at=dps.FrozenMap({"group_size": 1, "delta": 0.0}),
            method="sign of the likelihood ratio",
            source="guide",
            scope=kit.executed_scope(spec, adversary="record", access="final-model"),
        )
        yield evidence
        yield kit.lower_from(evidence, spec.audit.confidence)
"""


def module_text(conclude: str = CONCLUDE) -> str:
    (method,) = re.findall(r"```python\n(import math\n.*?class FairGuesses.*?)```", GUIDE.read_text(), re.DOTALL)
    template = (TEMPLATE / "attacked.py.tmpl").read_text()
    template = template.replace("$kind", "guessed-count").replace("$title", "GuessedCount")
    example = (TEMPLATE / "attacked.yaml.tmpl").read_text().replace("$kind", "guessed-count")
    example = example.replace("group_size: [1, 3]", "group_size: [1]")
    example = re.sub(r"  - {id: family.*\n", "", example)
    template = template.replace('files(__name__).joinpath("example.yaml").read_text(encoding="utf-8")', repr(example))
    body, hooks = template.split("\n\n@dps.hookimpl")
    return f"{body}{conclude}\n\n@dps.hookimpl{hooks}\n\n{method}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Use a project whose file has this text, and return its example as a spec."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(loader, "_project", ())
    monkeypatch.setattr(project_module, "_IMPORTED", {})

    def use(text: str) -> Path:
        (tmp_path / "pyproject.toml").write_text('[tool.dpspec]\nplugins = ["parts.py"]\n')
        (tmp_path / "parts.py").write_text(text)
        use_project(project_files([tmp_path / "spec.yaml"]))
        (tmp_path / "spec.yaml").write_text(load_catalog().mechanisms["guessed-count"].provider.example)
        return tmp_path / "spec.yaml"

    return use


def audited(spec: Path, folder: Path) -> Result:
    loaded = load_specs([spec], load_catalog())
    assert loaded.ok, loaded.diagnostics
    return run(loaded.specs, load_catalog(), store=Store(folder), device="cpu")


def guesses(correct: int, total: int = 1000) -> Evidence:
    statistics = FrozenMap({"guesses": total, "correct": correct})
    scope = Scope(adjacency="add-remove", pipeline="executed")
    return Evidence(id="e", kind="fair-guesses", statistics=statistics, scope=scope, method="m", source="s")


def test_an_audit_is_judged_by_it(project, tmp_path) -> None:
    spec = project(module_text())
    result = audited(spec, tmp_path / "store")
    (audit,) = result.audits
    verdicts = {verdict.claim: verdict for verdict in audit.verdicts}
    assert [verdicts[name].verdict for name in ("one", "too-good")] == ["proved", "refuted"]
    (evidence,) = audit.evidence
    (bound,) = [
        finding for finding in audit.findings if finding.bound == "lower" and finding.scope.pipeline == "executed"
    ]
    for outcome in (evidence, bound):
        (assumed,) = [a for a in outcome.assumptions if a.name == "test-code"]
        assert "'fair-guesses' of parts.py" in assumed.text
    # Independent oracle: a binomial test of the largest probability of a correct guess.
    correct, total = evidence.statistics["correct"], evidence.statistics["guesses"]
    most = math.exp(0.1) / (1.0 + math.exp(0.1))
    expected = binomtest(correct, total, most, alternative="greater").pvalue
    assert evidence_tests.p_value(evidence, 0.1, 0.0) == pytest.approx(expected, rel=1e-9)
    assert verdicts["too-good"].p_value >= expected
    assert bound.value < 0.5
    assert codec.load(codec.dump(result)).audits[0].evidence == audit.evidence
    assert not [line for line in verify(result, load_catalog()) if line.differs]
    figure = power(audit)
    assert figure is not None
    assert any(line.label.startswith("attack") and len(line.x) == 1 for line in figure.chart.lines)
    assert "REFUTED" in terminal.render(result)


@pytest.mark.family
@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (
            "return float(binom.sf(",
            "return 2.0 + float(binom.sf(",
            r"p_value\(\) returns '2.*', not a number from 0 to 1",
        ),
        (
            "return float(binom.sf(",
            "raise SystemExit(binom.sf(",
            r"'fair-guesses' of parts\.py .*: p_value\(\) raises SystemExit",
        ),
        ("return max(0.0, math.log(", "return -max(1.0, math.log(", r"epsilon_lower\(\) returns '-2.*', not a number"),
    ],
)
def test_a_wrong_method_is_named(project, old: str, new: str, match: str) -> None:
    project(module_text().replace(old, new))
    with pytest.raises(PluginError, match=match):
        p_value_and_bound(guesses(900))


def p_value_and_bound(evidence: Evidence) -> tuple[float, float]:
    curve = evidence_tests.curve_p_value(evidence, [(1.0, 0.0)])
    return curve, evidence_tests.epsilon_lower(evidence, 0.0, 0.95)


def test_impossible_counts_and_unknown_kinds_are_refused(project) -> None:
    project(module_text())
    with pytest.raises(ValueError, match="counts more than there can be"):
        evidence_tests.require_counts(guesses(1001))
    with pytest.raises(ValueError, match="below 0"):
        evidence_tests.require_counts(guesses(-1))
    use_project(())
    with pytest.raises(ValueError, match="'fair-guesses' tests no privacy curve"):
        evidence_tests.curve_p_value(guesses(900), [(1.0, 0.0)])


def test_a_descriptor_with_other_types_is_refused(project) -> None:
    with pytest.raises(UsageError, match="statistics must be of type count, counts, outcomes, got 'float'"):
        project(module_text().replace('"guesses": "count"', '"guesses": "float"'))
