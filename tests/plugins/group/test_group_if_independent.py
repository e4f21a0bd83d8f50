"""``epsilon-if-independent``: a conditional number beside the bound, which no claim uses."""

from pathlib import Path

import numpy as np
import pytest
from support.attacks import attacked

from dpspec.contract import Finding, Spec
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.registry.loader import load_catalog
from dpspec_group.evidence import one_run_outcomes
from dpspec_group.scores import declared_distribution

RECORDS, CANARIES = 40, 200


def outcomes(spec: Spec, runs: int, *, silent: int = 0) -> list[str]:
    """Inclusion bits by score of runs that follow the declaration, except ``silent`` ones, which show nothing."""
    law = declared_distribution(spec, RECORDS, 1)
    assert law is not None
    rng, found = np.random.default_rng(3), []
    for number in range(runs):
        coins = rng.integers(0, 2, CANARIES)
        informative = coins * (number >= silent)
        drawn = [rng.choice(law.scores, CANARIES, p=part / part.sum()) for part in (law.absent, law.present)]
        order = np.argsort(np.where(informative == 1, drawn[1], drawn[0]), kind="stable")
        found.append("".join(map(str, coins[order])))
    return found


def findings(spec: Spec, runs: list[str]) -> dict[tuple[str, str], Finding]:
    found = [outcome for outcome in one_run_outcomes(spec, RECORDS, 1, runs) if isinstance(outcome, Finding)]
    return {(finding.quantity, finding.bound): finding for finding in found}


def test_the_number_is_between_the_bound_and_what_is_certified(tmp_path: Path) -> None:
    spec = attacked(tmp_path, "claims.one.epsilon=30.0", "claims.four.epsilon=90.0")
    found = findings(spec, outcomes(spec, 20))
    conditional = found["epsilon-if-independent", "lower"]
    certified = float(conditional.method.split("at most ")[1].split(" is certified")[0])
    assert 0.7 * certified < conditional.value < certified
    assert conditional.rigor == "approximate"
    assert conditional.at["delta"] >= found["epsilon", "lower"].at["delta"]
    (independent,) = (each for each in conditional.assumptions if each.name == "independent-scores")
    assert (independent.status, independent.level) == ("not-rejected", 0.05)
    assert "no epsilon-if-independent" not in found["epsilon", "estimate"].method


def test_runs_that_share_their_luck_have_none(tmp_path: Path) -> None:
    spec = attacked(tmp_path, "claims.one.epsilon=30.0", "claims.four.epsilon=90.0")
    found = findings(spec, outcomes(spec, 20, silent=2))
    assert ("epsilon-if-independent", "lower") not in found
    assert "no epsilon-if-independent, because runs differ more" in found["epsilon", "estimate"].method


@pytest.mark.parametrize("runs", [1, 19])
def test_fewer_runs_have_none(tmp_path: Path, runs: int) -> None:
    spec = attacked(tmp_path)
    found = findings(spec, outcomes(spec, runs))
    assert ("epsilon-if-independent", "lower") not in found
    assert "independent" not in found["epsilon", "estimate"].method


@pytest.mark.ci
def test_a_result_with_it_is_verified_and_no_verdict_uses_it(tmp_path: Path) -> None:
    spec = attacked(tmp_path, "audit.runs=20", "audit.canary.count=100", "mechanism.noise_multiplier=4")
    result = run([spec], load_catalog(), store=Store(tmp_path / "store"))
    (audit,) = result.audits
    assert {f.rigor for f in audit.findings if f.quantity == "epsilon-if-independent"} == {"approximate"}
    assert all("if-independent" not in verdict.reason for verdict in audit.verdicts)
    assert verify(result, load_catalog()) == ()
