"""A new scheme is a class and a descriptor: it is validated, bounded, trained, attacked and tested like any other."""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, sqrt
from pathlib import Path

import pytest
import torch
from scipy.stats import norm
from support.attacks import audited, errors
from support.periodic import Periodic, PeriodicTheory
from support.phases import phase_of

from dpspec.contract import SamplingKind
from dpspec.contract.catalog import Offered
from dpspec.contract.fragments import use_schemes
from dpspec.registry import loader
from dpspec.registry.loader import Registry
from dpspec_group.theory import group_epsilons

TEXT = """\
dpspec: 1
name: periodic
mechanism:
  {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: periodic, epoch_steps: 4}, steps: 40}
data: {kind: synthetic, records: 60, features: 20, classes: 4, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: 1}
claims:
  - {id: proved, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
  - {id: refuted, kind: approx-dp, epsilon: 5.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 16}, seed: 11}
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer the scheme as an installed plugin does."""
    kind = SamplingKind(
        kind="periodic",
        summary="every record at the last step of each epoch",
        code="support.periodic:Periodic",
        takes=("epoch_steps",),
    )
    offered = Offered(provider=kind, plugin="periodic", distribution="dpspec-periodic", version="1.0")
    usual = loader.load_registry()
    registry = Registry(usual.manager, replace(usual.catalog, sampling_schemes={"periodic": offered}))
    monkeypatch.setattr(loader, "_registry", lambda files: registry)
    loader.load_registry()
    yield
    use_schemes({})


def gaussian_delta(epsilon: float, mu: float) -> float:
    return float(norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def test_a_spec_of_the_scheme_is_bounded_trained_and_tested(tmp_path: Path) -> None:
    audit = audited(tmp_path, text=TEXT)
    assert [verdict.verdict for verdict in audit.verdicts] == ["proved", "refuted"]
    assert audit.conformance.status == "no-deviation-found"
    notes = [check.note for check in audit.checks if check.assumption == "sampling"]
    assert notes == ["batch size, phase 1", "batches of each epoch, phase 1", "records drawn twice"]
    bounds = [found for found in audit.findings if found.quantity == "epsilon" and found.value > 0.0]
    assert {found.bound for found in bounds} == {"upper", "lower"}
    for found in bounds:
        assert gaussian_delta(found.value, sqrt(10) / 2.0) == pytest.approx(found.at["delta"], rel=1e-2)


def test_another_sampler_deviates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Periodic, "draw", lambda self, generator: torch.arange(self.records // self.epoch_steps))
    assert audited(tmp_path, text=TEXT).conformance.status == "deviates"


def test_options_of_other_schemes_and_cut_epochs_are_errors(tmp_path: Path) -> None:
    assert any("rate" in message for message in errors(tmp_path, "mechanism.sampling.rate=0.5", text=TEXT))
    assert any(
        "multiple of epoch_steps = 4" in message for message in errors(tmp_path, "mechanism.steps=41", text=TEXT)
    )


def test_a_scheme_that_states_no_attained_pairs_has_no_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    phase = phase_of("periodic", 8, epoch_steps=4)
    (tight,) = group_epsilons([phase], 1, 60, [1e-5], "both")
    monkeypatch.setattr(PeriodicTheory, "tight", False)
    (loose,) = group_epsilons([phase.replace(clip_norm=2.0)], 1, 60, [1e-5], "both")
    assert 0.0 == loose.lower < tight.lower <= tight.upper == loose.upper


def test_mechanisms_without_a_theorem_reject_the_scheme(tmp_path: Path) -> None:
    replaced = errors(tmp_path, "threat_model.adjacency=replace-one", "audit=null", text=TEXT)
    assert "no theorem here covers replaced records in periodic batches" in replaced
