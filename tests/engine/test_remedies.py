"""Remedies of failed claims: values that a search tried, against the closed form of the Gaussian mechanism."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
from scipy import optimize, special

import dpspec
from dpspec.contract.results import AuditResult, Remedy
from dpspec.engine import remedies as module
from dpspec.engine.verify import verify
from dpspec.errors import UsageError
from dpspec.registry.loader import load_catalog

DELTA = 1e-5


def spec(epsilon: float = 2.0, group_size: int = 1, **mechanism: Any) -> dict[str, Any]:
    """Full batches, with the loss of one Gaussian mechanism of mu = group_size sqrt(steps) / noise."""
    return {
        "dpspec": 1,
        "name": "remedy",
        "mechanism": {
            "kind": "group", "noise_multiplier": 4.0, "clip_norm": 1.0, "sampling": {"scheme": "full"}, "steps": 9,
            **mechanism,
        },
        "data": {"kind": "declared", "records": 1000},
        "threat_model": {"group_size": sorted({1, group_size})},
        "claims": [{"id": "c", "kind": "approx-dp", "epsilon": epsilon, "delta": DELTA, "group_size": group_size}],
    }  # fmt: skip


def audited(document: dict[str, Any], folder: Any, seconds: float | None = math.inf) -> AuditResult:
    """Return the audit of a run that searches however slow the machine is."""
    (audit,) = dpspec.run(document, store=folder, remedy_seconds=seconds).audits
    return audit


def largest_mu(epsilon: float) -> float:
    """Oracle: delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018, Theorem 8)."""

    def excess(mu: float) -> float:
        return (
            float(special.ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu))
            - DELTA
        )

    return float(optimize.brentq(excess, 1e-3, 50.0, xtol=1e-12))


@pytest.mark.ci
def test_noise_and_steps_are_just_enough(tmp_path: Any) -> None:
    audit = audited(spec(), tmp_path)
    found = {remedy.place: remedy for remedy in audit.remedies}
    mu = largest_mu(2.0)
    noise = found["mechanism.noise_multiplier"]
    assert noise.now == 4.0
    assert 3.0 / mu <= noise.value <= 1.02 * 3.0 / mu
    assert noise.value == float(f"{noise.value:.3g}")
    assert found["mechanism.steps"] == Remedy(place="mechanism.steps", now=9.0, value=math.floor((4.0 * mu) ** 2))


@pytest.mark.ci
def test_the_noise_of_an_adaptive_count_is_just_enough(tmp_path: Any) -> None:
    """A step is one Gaussian of 1 / sigma^2 = 1 / z^2 + 1 / (2 s)^2."""
    adaptive = {"scheme": "adaptive", "count_std": 0.5}
    audit = audited(spec(5.0, clipping=adaptive), tmp_path)
    found = {remedy.place: remedy for remedy in audit.remedies}
    enough = 0.5 / math.sqrt((largest_mu(5.0) / 3.0) ** 2 - 1.0 / 16.0)
    assert enough <= found["mechanism.clipping.count_std"].value <= 1.02 * enough


@pytest.mark.ci
def test_a_claim_on_a_group_has_its_largest_group(tmp_path: Any) -> None:
    audit = audited(spec(4.0, group_size=6), tmp_path)
    found = {remedy.place: remedy for remedy in audit.remedies}
    assert found["claims.c.group_size"].value == math.floor(largest_mu(4.0) * 4.0 / 3.0)


@pytest.mark.ci
def test_an_edited_remedy_is_found(tmp_path: Any) -> None:
    catalog, result = load_catalog(), dpspec.run(spec(), store=tmp_path, remedy_seconds=math.inf)
    assert not [one for one in verify(result, catalog) if one.differs]
    (audit,) = result.audits
    for wrong in (
        Remedy(place="mechanism.noise_multiplier", now=4.0, value=4.5),
        Remedy(place="gone", now=1.0, value=2.0),
    ):
        edited = dataclasses.replace(result, audits=(dataclasses.replace(audit, remedies=(wrong,)),))
        (mismatch,) = [one for one in verify(edited, catalog) if one.differs]
        assert mismatch.what.startswith("remedies[0]")


def test_nothing_is_searched_without_a_failure_or_without_time(tmp_path: Any) -> None:
    assert audited(spec(8.0), tmp_path).remedies == ()
    unexpected = spec()
    unexpected["claims"][0]["expect"] = "open"
    assert audited(unexpected, tmp_path).remedies == ()
    assert audited(spec(), tmp_path, 0.0).remedies == ()


@pytest.mark.ci
def test_a_search_takes_eight_seconds_by_default_and_ends_when_they_are_over(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = audited(spec(), tmp_path, None).remedies
    assert found == audited(spec(), tmp_path, 8.0).remedies != ()
    times = itertools.count(0.0, 5.0)
    monkeypatch.setattr(module.time, "process_time", lambda: next(times))
    assert audited(spec(), tmp_path, None).remedies == ()


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_a_time_that_is_none_is_refused(seconds: float, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="remedy_seconds must be at least 0"):
        audited(spec(), tmp_path, seconds)
