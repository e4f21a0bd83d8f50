"""Attacks test every point of a printed curve, and a third party's bound says whose it is."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support import votes, wrong_votes
from support.votes_suite import registry

from dpspec.contract import FrozenMap, Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import UsageError
from dpspec.language.load import load_specs
from dpspec.registry.loader import sign_off
from dpspec.registry.project import trusted_distributions
from dpspec.reporters import terminal
from dpspec.reporters.figures import power
from dpspec.reporters.provenance import provenance
from dpspec.reporters.risk import risk
from dpspec.results import codec
from dpspec.results.evidence_weight import series_bounds

#: An attack with power at a false-positive rate of a few per cent, as of trained teachers; no claim is near the curve.
EXAMPLE = votes.EXAMPLE.replace("sigma: 2.0", "sigma: 0.6").replace("epsilon: 9.0", "epsilon: 90.0")


def audited(audit: type[Any], folder: Path, *, trust: bool = False, train: bool = True) -> Result:
    (folder / "spec.yaml").write_text(EXAMPLE.replace("[1, 2]", "[1]"))
    catalog = registry(audit).catalog
    catalog = sign_off(catalog, ["dpspec_votes"]) if trust else catalog
    loaded = load_specs([folder / "spec.yaml"], catalog)
    assert loaded.ok, loaded.diagnostics
    return run(loaded.specs, catalog, store=Store(folder / "store"), device="cpu", train=train)


def test_half_of_mu_is_contradicted_although_no_finding_at_a_claimed_delta_is(tmp_path: Path) -> None:
    result = audited(wrong_votes.HalvedMu, tmp_path)
    (audit,) = result.audits
    (verdict,) = audit.verdicts
    assert verdict.verdict == "contradicted"
    assert "rejects the proved curve" in verdict.reason
    assert risk(audit)[0].startswith("An attack contradicts the bound")


def test_the_true_mu_is_proved_and_the_caption_counts_the_tested_points(tmp_path: Path) -> None:
    (audit,) = audited(votes.Votes, tmp_path).audits
    assert audit.verdicts[0].verdict == "proved"
    figure = power(audit)
    assert figure is not None
    points = {
        p
        for f in [*audit.findings, *series_bounds(audit.findings, audit.series)]
        if f.bound == "upper"
        for p in [f.value]
    }
    assert len(points) > 10
    assert "; 1 attack of this run tested" in figure.caption
    assert "points of the bounds" in figure.caption


def test_without_trials_the_caption_says_that_nothing_is_tested(tmp_path: Path) -> None:
    (audit,) = audited(votes.Votes, tmp_path, train=False).audits
    figure = power(audit)
    assert figure is not None
    assert "no attack of this run tests these bounds" in figure.caption


def test_a_third_party_s_bound_names_its_plugin(tmp_path: Path) -> None:
    result = audited(votes.Votes, tmp_path, train=False)
    (audit,) = result.audits
    upper = [finding for finding in audit.findings if finding.bound == "upper"]
    for finding in upper:
        (assumed,) = [a for a in finding.assumptions if a.name == "bound-code"]
        assert (assumed.status, finding.origin) == ("reported", "dpspec-votes 1.0")
        assert "'votes' of dpspec-votes 1.0" in assumed.text
    assert audit.verdicts[0].reason.startswith("Proved by dpspec-votes 1.0: ")
    assert "(proved formula by dpspec-votes 1.0)" in " ".join(terminal.render(result).split())
    assert codec.load(codec.dump(result)) == result


@pytest.mark.ci
def test_signing_off_is_recorded_and_verified(tmp_path: Path) -> None:
    result = audited(votes.Votes, tmp_path, trust=True)
    (assumed,) = {a for f in result.audits[0].findings for a in f.assumptions if a.name == "bound-code"}
    assert assumed.status == "declared"
    assert "the user signed the plugin off" in assumed.text
    assert list(result.environment["trusted"]) == ["dpspec-votes"]
    assert ("Signed off by the user", "dpspec-votes") in provenance(result).common
    catalog = registry(votes.Votes).catalog
    store = Store(tmp_path / "store")
    assert [m for m in verify(result, catalog, store=store) if m.differs] == []
    untrusted = dataclasses.replace(result, environment=FrozenMap({**result.environment, "trusted": []}))
    assert [m.what for m in verify(untrusted, catalog, store=store) if m.differs]


def test_own_bounds_need_no_sign_off() -> None:
    catalog = registry(votes.Votes).catalog
    with pytest.raises(
        UsageError, match=r"no plugin is of the distribution 'dpspec' \(third-party ones: dpspec-votes\)"
    ):
        sign_off(catalog, ["dpspec"])


def test_a_project_signs_off_in_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dpspec]\ntrust = ["dpspec-votes"]\n')
    assert trusted_distributions([tmp_path / "spec.yaml"]) == ("dpspec-votes",)
    (tmp_path / "pyproject.toml").write_text("[tool.dpspec]\ntrust = 3\n")
    with pytest.raises(UsageError, match="trust must be a list of distributions"):
        trusted_distributions([tmp_path / "spec.yaml"])
