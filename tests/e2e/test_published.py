"""What is said of published claims in docs is what their specs come to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dpspec

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"\| ([\d.]+), ([\d,/.]+), ([\d,]+) \| ([\d.e-]+) \| ([\d.]+) \| \[([\d.]+), ([\d.]+)\] \| \**(\w+)\** \|"
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[float, int, float], tuple[str, float, float]]:
    """By noise multiplier, steps and claimed epsilon: the verdict and the certified interval."""
    found = {}
    store = tmp_path_factory.mktemp("published") / "store"
    for audit in dpspec.run(ROOT / "specs" / "published", store=store).audits:
        (claim,), mechanism, (verdict,) = audit.document["claims"], audit.document["mechanism"], audit.verdicts
        key = (mechanism["noise_multiplier"], mechanism["steps"], claim["epsilon"])
        found[key] = (verdict.verdict, verdict.lower, verdict.upper)
    return found


def test_the_table_is_what_was_judged(judged: dict[tuple[float, int, float], tuple[str, float, float]]) -> None:
    page = (ROOT / "docs" / "explanation" / "published-claims.md").read_text(encoding="utf-8")
    rows = ROW.findall(page)
    assert len(rows) == len(judged)
    for noise, _, steps, _, claimed, low, high, verdict in rows:
        name, lower, upper = judged[float(noise), int(steps.replace(",", "")), float(claimed)]
        assert name == verdict
        assert float(low) <= lower <= upper <= float(high)
        assert float(high) - float(low) <= 2.5e-3


def test_a_claim_by_the_central_limit_theorem_is_refuted_by_another_accountant_too() -> None:
    """The PRV accountant of Opacus bounds its own error by the 0.01 that it adds."""
    pytest.importorskip("opacus")
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(1.06, 256 / 60000, 4687)]
    assert accountant.get_epsilon(delta=1e-5) - 2 * 0.01 > 1.34
