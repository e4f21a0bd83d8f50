"""The docs on published claims state the results of their specs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dpspec

ROOT = Path(__file__).parents[2]
SHUFFLED = ROOT / "specs" / "published" / "shuffled.yaml"
PUBLISHED = sorted(path for path in (ROOT / "specs" / "published").glob("*.yaml") if path != SHUFFLED)
PAGE = ROOT / "docs" / "explanation" / "published-claims.md"
ROW = re.compile(
    r"\| ([\d.]+), ([\d,/.]+), ([\d,]+) \| ([\d.e-]+) \| ([\d.]+) \| \[([\d.]+), ([\d.]+)\] \| \**(\w+)\** \|"
)
#: A row of ``SHUFFLED``: noise multiplier, steps, delta, epsilon, interval and verdict.
SHUFFLED_ROW = re.compile(
    r"\| ([\d.]+), (?:batches of [\d,]+ of [\d,]+, )?([\d,]+)(?: steps)? \| ([\d.e-]+) \| ([\d.]+) "
    r"\| \[([\d.]+), ([\d.]+)\] \| \*\*(\w+)\*\* \|"
)


def _key(document: Mapping[str, Any]) -> tuple[float, int, float]:
    (claim,), mechanism = document["claims"], document["mechanism"]
    return mechanism["noise_multiplier"], mechanism["steps"], claim["epsilon"]


@pytest.mark.ci
def test_the_table_is_what_was_judged(tmp_path: Path) -> None:
    judged = {}
    for audit in (audit for path in PUBLISHED for audit in dpspec.run(path, store=tmp_path).audits):
        (verdict,) = audit.verdicts
        judged[_key(audit.document)] = (verdict.verdict, verdict.lower, verdict.upper)
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    published = {(float(row[0]), int(row[2].replace(",", "")), float(row[4])): row[5:] for row in rows}
    assert len(published) == len(rows)
    assert published.keys() == judged.keys()
    for key, (name, lower, upper) in judged.items():
        low, high, verdict = published[key]
        assert name == verdict
        assert float(low) <= lower <= upper <= float(high)
        assert float(high) - float(low) <= upper - lower + 2.5e-3
        assert upper - lower <= 2.5e-3 or name == "refuted"


@pytest.mark.ci
def test_the_table_of_shuffled_programs_is_what_was_judged() -> None:
    rows = SHUFFLED_ROW.findall(PAGE.read_text(encoding="utf-8"))
    published = {(float(row[0]), int(row[1].replace(",", "")), float(row[3])): row[4:] for row in rows}
    audits = dpspec.run(SHUFFLED).audits
    assert len(rows) == len(published) == len(audits) == 4
    for audit in audits:
        (verdict,) = audit.verdicts
        low, high, name = published[_key(audit.document)]
        assert name == verdict.verdict == "refuted"
        assert float(low) <= verdict.lower <= verdict.upper <= float(high)


def test_a_claim_by_the_central_limit_theorem_is_refuted_by_another_accountant_too() -> None:
    """The PRV accountant of Opacus bounds its own error by the 0.01 that it adds."""
    pytest.importorskip("opacus")
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(1.06, 256 / 60000, 4687)]
    assert accountant.get_epsilon(delta=1e-5) - 2 * 0.01 > 1.34
