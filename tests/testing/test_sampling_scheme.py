"""A sampling scheme by hook runs like dpspec's own, and the suite finds wrong ones."""

import dataclasses
import sys
import types
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.periodic import Periodic, PeriodicTheory
from support.votes_suite import OURS

import dpspec.contract as dps
from dpspec import accounting
from dpspec.contract.fragments import SAMPLING, sampling_schema, use_schemes
from dpspec.contract.sampling import SCHEMES
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.language.load import load_specs
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import SamplingSchemeSuite

TESTS = [name for name in dir(SamplingSchemeSuite) if name.startswith("test_")]

TEXT = """\
dpspec: 1
name: periodic
mechanism:
  {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: periodic, epoch_steps: 4}, steps: 40}
data: {kind: synthetic, records: 60, features: 20, classes: 4, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.5}
claims:
  - {id: proved, kind: approx-dp, epsilon: 9.0, delta: 1e-5}
audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 16}, seed: 11}
"""


class HalvedTheory(PeriodicTheory):
    """Half of the sensitivity."""

    def composed(self, phase: Any, group_size: int, records: int) -> Any:
        return ((accounting.Mixture([0.5], [1.0], phase.noise_multiplier), 1),)


class TooSmallTheory(Periodic):
    theory = HalvedTheory()


class AloneTheory(PeriodicTheory):
    """Groups have the bound of one record."""

    def composed(self, phase: Any, group_size: int, records: int) -> Any:
        return super().composed(phase, 1, records)


class Alone(Periodic):
    theory = AloneTheory()


class LooseTheory(PeriodicTheory):
    """A bound of twice the sensitivity, which no data attains, is said to be tight."""

    def composed(self, phase: Any, group_size: int, records: int) -> Any:
        return super().composed(phase, 2 * group_size, records)


class Loose(Periodic):
    theory = LooseTheory()


class HonestLooseTheory(LooseTheory):
    tight = False


class HonestLoose(Periodic):
    theory = HonestLooseTheory()


class HeldTheory(PeriodicTheory):
    """A Poisson-sampled release of all steps of an epoch at once."""

    def composed(self, phase: Any, group_size: int, records: int) -> Any:
        steps = int(phase["sampling"]["epoch_steps"])
        release = accounting.Mixture.poisson(group_size, 1.0 / steps, phase.noise_multiplier / steps**0.5)
        return ((release, phase.steps // steps),)


class Held(Periodic):
    """A Poisson sample at rate 1 / epoch_steps that is the batch of all steps of an epoch."""

    theory = HeldTheory()

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        if self.done % self.epoch_steps == 0:
            self.draws = torch.rand(self.records, generator=generator) < 1.0 / self.epoch_steps
        self.done += 1
        assert self.draws is not None
        return self.draws.nonzero()[:, 0]


class OtherInclusion(Periodic):
    @property
    def inclusion(self) -> float:
        return 0.5 / self.epoch_steps


class OtherMoments(Periodic):
    def inclusion_moments(self, observed: Any) -> Any:
        means, variances = super().inclusion_moments(observed)
        return means, variances + 0.5


class Unseeded(Periodic):
    def draw(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randperm(self.records)[:3].sort().values


class OutOfOrder(Periodic):
    def draw(self, generator: torch.Generator) -> torch.Tensor:
        return torch.flip(super().draw(generator), (0,))


class Forgets(Periodic):
    def state(self) -> Any:
        return {"done": np.array(0)}


class Unchecked(Periodic):
    checks = ()


class Missing(Periodic):
    """The last record is in no batch."""

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        return super().draw(generator)[:-1]


@pytest.fixture(autouse=True)
def _without_schemes_afterwards() -> Iterator[None]:
    yield
    use_schemes({})
    assert "periodic" not in SCHEMES
    assert sampling_schema() == SAMPLING


def registry(code: type[Periodic]) -> Registry:
    module = types.ModuleType(f"scheme_{code.__name__.lower()}")
    kind = dps.SamplingKind(
        kind="periodic",
        summary="every record at the last step of each epoch",
        code=f"{code.__module__}:{code.__name__}",
        takes=("epoch_steps",),
    )
    module.DPSPEC_API = 1  # type: ignore[attr-defined]
    module.dpspec_sampling_schemes = dps.hookimpl(lambda: [kind])  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    own = ("group",)
    mechanisms = [Candidate(distribution="dpspec", version="0", plugin=n, value=f"dpspec_{n}") for n in own]
    plugin = Candidate(distribution="dpspec-periodic", version="1.0", plugin="p", value=module.__name__)
    found = build([OURS, *mechanisms, plugin])
    use_schemes({k: o.provider for k, o in found.catalog.sampling_schemes.items()})
    return found


def suite(code: type[Periodic]) -> Any:
    found = registry(code)

    class Suite(SamplingSchemeSuite):
        kind = "periodic"
        options: ClassVar = {"epoch_steps": 4}
        runs = 500
        noise = (1.0,)

    Suite.registry = classmethod(lambda cls: found)  # type: ignore[method-assign, assignment]
    return Suite()


def failures(made: Any, tests: Sequence[str] = TESTS) -> dict[str, str]:
    messages = {}
    for test in tests:
        if test == "test_importing_the_descriptor_is_light":  # the module is not on the path of another process
            continue
        try:
            getattr(made, test)()
        except unittest.SkipTest:
            continue
        except AssertionError as error:
            messages[test] = str(error)
    return messages


@pytest.mark.ci
def test_a_right_scheme_passes() -> None:
    assert failures(suite(Periodic)) == {}


@pytest.mark.parametrize("code", [HonestLoose, Held], ids=lambda code: code.__name__)
def test_loose_bounds_and_attained_ones_pass(code: type[Periodic]) -> None:
    made = suite(code)
    made.noise, made.runs = (0.5, 1.0, 3.0), 2000  # at much noise, delta is larger than the advantage
    assert failures(made, ["test_a_tight_theory_is_attained"]) == {}


@pytest.mark.parametrize(
    ("code", "found_by"),
    [
        (TooSmallTheory, "test_the_theory_holds_for_executed_batches"),
        (Loose, "test_a_tight_theory_is_attained"),
        (Alone, "test_the_theory_holds_for_executed_batches"),
        (OtherInclusion, "test_inclusion_is_that_of_the_batches"),
        (OtherMoments, "test_moments_are_those_of_the_batches"),
        (Unseeded, "test_the_generator_decides"),
        (OutOfOrder, "test_batches_are_distinct_records_in_order"),
        (Forgets, "test_a_resumed_run_draws_the_same_batches"),
        (Unchecked, "test_checks_exist"),
        (Missing, "test_inclusion_is_that_of_the_batches"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_wrong_schemes_are_found(code: type[Periodic], found_by: str) -> None:
    assert found_by in failures(suite(code), [found_by])


def test_a_spec_of_the_scheme_is_bounded_trained_tested_and_names_the_plugin(tmp_path: Path) -> None:
    catalog = registry(Periodic).catalog
    (tmp_path / "spec.yaml").write_text(TEXT)
    loaded = load_specs([tmp_path / "spec.yaml"], catalog)
    assert loaded.ok, loaded.diagnostics
    (audit,) = run(loaded.specs, catalog, store=Store(tmp_path / "store"), device="cpu").audits
    assert audit.verdicts[0].verdict == "proved"
    assert audit.conformance.status == "no-deviation-found"
    assert {finding.origin for finding in audit.findings if finding.rigor == "certified"} == {"dpspec-periodic 1.0"}
    assert audit.verdicts[0].reason.startswith("Certified by dpspec-periodic 1.0: ")


def test_no_plugin_replaces_an_own_scheme_or_invents_options() -> None:
    from dpspec.registry.loader import FAMILIES, problems

    (family,) = [f for f in FAMILIES if f.name == "sampling scheme"]
    kind = dps.SamplingKind(kind="poisson", summary="s", code="m:C")
    assert any("dpspec has a sampling scheme of this name" in p for p in problems(kind, family))
    kind = dataclasses.replace(kind, kind="mine", takes=("size",))
    assert any("unknown options size" in p for p in problems(kind, family))
