"""A plain numpy script that writes scores: the correct one is never refuted, faulty ones are.

By hand 300 seeds of the correct script and 30 of each faulty one were judged; the tests run a few of each.
"""

from pathlib import Path

import numpy as np
import pytest
from e2e.scripts import numpy_scores as script
from support.attacks import spec_at

from dpspec.contract import Finding
from dpspec.contract.catalog import Catalog
from dpspec.contract.results import AuditResult
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.registry.loader import load_catalog

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "specs" / "attacks" / "scores.yaml"
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def audits(catalog: Catalog, folder: Path, fault: str) -> list[AuditResult]:
    """The shipped spec on the tables of several seeds, judged one by one."""
    text = SPEC.read_text(encoding="utf-8")
    (folder / "scores.yaml").write_text(text, encoding="utf-8")
    found = []
    for seed in SEEDS:
        script.main(folder / "scores.csv", seed, fault)
        spec = spec_at(folder / "scores.yaml")
        (audit,) = run([spec], catalog, store=Store(folder / "store"), device="cpu").audits
        found.append(audit)
    return found


def verdicts(found: list[AuditResult], claim: str) -> list[str]:
    return [v.verdict for audit in found for v in audit.verdicts if v.claim == claim]


def shown(audit: AuditResult) -> float:
    statistical = [f for f in audit.findings if isinstance(f, Finding) and f.rigor == "statistical"]
    (lower,) = [f.value for f in statistical if f.quantity == "epsilon"]
    return lower


def test_the_spec_declares_what_the_script_does() -> None:
    spec = spec_at(SPEC)
    (phase,) = spec.phases
    declared = (phase.noise_multiplier, phase.clip_norm, phase.rate(script.RECORDS), phase.steps, spec.data["records"])
    assert declared == (script.SIGMA, script.CLIP, script.RATE, script.STEPS, script.RECORDS)
    assert spec.audit is not None
    assert spec.audit.options["scores"]["rows"] == script.CANARIES


def test_the_shipped_table_is_the_script_s(tmp_path: Path) -> None:
    """Written by seed 0; libraries that draw or round otherwise may differ in last digits, and in no coin."""
    script.main(tmp_path / "t.csv", 0)
    ours, shipped = (
        np.genfromtxt(path, delimiter=",", names=True) for path in (tmp_path / "t.csv", SPEC.with_suffix(".csv"))
    )
    assert (ours["in"] == shipped["in"]).all()
    assert np.allclose(ours["score"], shipped["score"], rtol=1e-6, atol=1e-9)


@pytest.mark.ci
def test_a_sound_script_is_supported(catalog: Catalog, tmp_path: Path) -> None:
    found = audits(catalog, tmp_path, "")
    assert verdicts(found, "one") == ["supported"] * len(SEEDS)
    assert {audit.conformance.status for audit in found} == {"not-run"}
    assert all(0.2 < shown(audit) < 2.5 for audit in found)


@pytest.mark.family
@pytest.mark.parametrize("fault", ["noise-forgotten", "clip-skipped", "noise-on-the-mean", "coins-leaked"])
def test_a_broken_script_is_refuted(fault: str, catalog: Catalog, tmp_path: Path) -> None:
    """Scores that know their coins refute a training that is sound: that they do not is assumed, and named."""
    found = audits(catalog, tmp_path, fault)
    assert verdicts(found, "one") == ["refuted"] * len(SEEDS)
    for audit in found:
        assert "assuming fair coins independent of the scores" in audit.verdicts[0].reason
        assert {"blind-scores", "fair-coins", "fixed-rows"} <= {a.name for e in audit.evidence for a in e.assumptions}


def test_one_score_that_knows_its_coin_is_not_seen(catalog: Catalog, tmp_path: Path) -> None:
    """One more right guess among a thousand may be chance; the assumption states that this was not checked."""
    found = audits(catalog, tmp_path, "one-coin-leaked")
    assert verdicts(found, "one") == ["supported"] * len(SEEDS)
    assert all(a.status == "declared" for f in found for e in f.evidence for a in e.assumptions)


def test_the_table_that_jax_privacy_left(catalog: Catalog, tmp_path: Path) -> None:
    """``scripts/jax_scores.py`` made the scores, for which jax-privacy printed 0.1862.

    That is ``CanaryScoreAuditor(in, out).epsilon_one_run(significance=0.05, delta=1e-5)``: only canaries called in, and
    a share of the level for each of 17 thresholds. Guesses of both kinds, at five counts fixed before, show more.
    """
    left = ROOT / "tests" / "e2e" / "scripts" / "jax_scores.csv"
    table = np.genfromtxt(left, delimiter=",", names=True)
    order = np.argsort(-table["in"], kind="stable")  # the two lists that the auditor takes, one after the other
    np.savez(tmp_path / "lists.npz", coin=table["in"][order], score=table["score"][order])
    (tmp_path / "table.csv").write_bytes(left.read_bytes())
    (tmp_path / "scores.yaml").write_text(SPEC.read_text(encoding="utf-8"), encoding="utf-8")
    for scores in (
        "{path: table.csv, coin: in, score: score, id: canary, rows: 1000}",
        "{path: lists.npz, coin: coin, score: score}",
    ):
        spec = spec_at(tmp_path / "scores.yaml", f"audit.scores={scores}")
        (audit,) = run([spec], catalog, store=Store(tmp_path / "store"), device="cpu").audits
        assert verdicts([audit], "one") == ["supported"]
        assert shown(audit) == pytest.approx(0.51)
        (evidence,) = audit.evidence
        assert evidence.statistics["correct"] == (13, 34, 103, 290, 594)
