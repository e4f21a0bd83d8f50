"""A noise by name bounds a composition, names its plugin, and the suite finds wrong ones."""

import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_expit
from scipy.stats import norm
from support.logistic import Gumbel, Logistic
from support.votes_suite import OURS

import dpspec.contract as dps
from dpspec.accounting import Laplace, LogConcaveNoise
from dpspec.contract.fragments import NAMED_NOISE, noise_schema, use_noises
from dpspec.contract.noise import NOISES
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import PluginError
from dpspec.language.load import load_specs
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import NoiseSuite

TESTS = [name for name in vars(NoiseSuite) if name.startswith("test_")]

TEXT = """\
dpspec: 1
name: logistic
mechanism:
  kind: composition
  releases: [{kind: noise, noise: logistic, scale: 10.0, times: 100}]
data: {kind: declared, records: 1000}
claims:
  - {id: proved, kind: approx-dp, epsilon: 2.6118, delta: 1e-6}
  - {id: refuted, kind: approx-dp, epsilon: 2.611, delta: 1e-6, control: true, expect: refuted}
"""


class HalvedShift(Logistic):
    """Half of the sensitivity."""

    def __init__(self, scale: float, sensitivity: float = 1.0) -> None:
        super().__init__(scale, 0.5 * sensitivity)


class IgnoredScale(Logistic):
    def __init__(self, scale: float, sensitivity: float = 1.0) -> None:
        super().__init__(1.0, sensitivity)


class OtherMass(Logistic):
    """Probabilities of noise that is 1 % wider."""

    def log_mass(self, low: Any, high: Any) -> Any:
        return super().log_mass(low / 1.01, high / 1.01)


class SmallerLargestLoss(Logistic):
    def largest_loss(self, direction: Any) -> float:
        return 0.9 * self.shift


class NotNormalized(Logistic):
    def log_density(self, z: Any) -> Any:
        return super().log_density(z) + 0.1


class SymmetricGumbel(Gumbel):
    is_symmetric = True


class MixedGumbel(Gumbel):
    is_gaussian_mixture = True


class Bimodal(LogConcaveNoise):
    """The mean of two Gaussians: the loss does not rise with the output."""

    is_symmetric = True

    def log_density(self, z: Any) -> Any:
        return np.logaddexp(norm.logpdf(z - 4.0), norm.logpdf(z + 4.0)) - np.log(2.0)

    def log_mass(self, low: Any, high: Any) -> Any:
        both = (norm.cdf(high - m) - norm.cdf(low - m) for m in (-4.0, 4.0))
        return np.log(np.maximum(0.5 * sum(both), 1e-300))


def laplace(scale: float, sensitivity: float) -> Laplace:
    """Another distribution, of half the loss."""
    return Laplace(2.0 * scale, sensitivity)


@pytest.fixture(autouse=True)
def _without_noises_afterwards() -> Iterator[None]:
    yield
    use_noises({})
    assert NOISES == {}
    assert noise_schema() == NAMED_NOISE


def registry(code: Any) -> Registry:
    module = types.ModuleType(f"noise_{code.__name__.lower()}")
    kind = dps.NoiseKind(kind="logistic", summary="logistic noise", code=f"{code.__module__}:{code.__name__}")
    module.DPSPEC_API = 1  # type: ignore[attr-defined]
    module.dpspec_noises = dps.hookimpl(lambda: [kind])  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    composition = Candidate(distribution="dpspec", version="0", plugin="composition", value="dpspec_composition")
    plugin = Candidate(distribution="dpspec-logistic", version="1.0", plugin="p", value=module.__name__)
    found = build([OURS, composition, plugin])
    use_noises({kind: offered.provider for kind, offered in found.catalog.noises.items()})
    return found


def suite(code: Any, density: Any = None) -> Any:
    found = registry(code)

    class Suite(NoiseSuite):
        kind = "logistic"

    Suite.registry = classmethod(lambda cls: found)  # type: ignore[method-assign, assignment]
    if density is not None:
        Suite.log_density = lambda self, z: density(z)  # type: ignore[method-assign]
    return Suite()


def logistic(z: Any) -> Any:
    return log_expit(z) + log_expit(-z)


@pytest.mark.ci
@pytest.mark.parametrize(("code", "density"), [(Logistic, logistic), (Logistic, None), (Gumbel, None)])
def test_right_noises_pass(code: Any, density: Any) -> None:
    made = suite(code, density)
    for test in TESTS:
        getattr(made, test)()


@pytest.mark.parametrize(
    ("code", "found_by"),
    [
        (HalvedShift, "test_intervals_contain_the_quadrature"),
        (HalvedShift, "test_compositions_are_not_below_simulated_losses"),
        (IgnoredScale, "test_only_the_ratio_of_sensitivity_and_scale_counts"),
        (OtherMass, "test_a_log_concave_density_is_one"),
        (SmallerLargestLoss, "test_no_loss_exceeds_the_largest"),
        (laplace, "test_intervals_contain_the_quadrature"),
    ],
)
@pytest.mark.ci
def test_wrong_noises_are_found(code: Any, found_by: str) -> None:
    with pytest.raises(AssertionError):
        getattr(suite(code, logistic), found_by)()


@pytest.mark.parametrize(
    ("code", "found_by"),
    [
        (NotNormalized, "test_the_density_is_a_density"),
        (SymmetricGumbel, "test_a_symmetric_pair_is_one"),
        (MixedGumbel, "test_a_gaussian_mixture_has_gaussian_noise"),
        (Bimodal, "test_a_log_concave_density_is_one"),
    ],
)
def test_wrong_densities_are_found(code: Any, found_by: str) -> None:
    with pytest.raises(AssertionError):
        getattr(suite(code), found_by)()


def test_a_wrong_mass_is_reported_once_and_not_composed() -> None:
    """Searches for narrow intervals of inconsistent pairs take minutes."""
    made = suite(OtherMass, logistic)
    outcomes: dict[str, type[BaseException] | None] = {}
    for test in TESTS:
        try:
            getattr(made, test)()
            outcomes[test] = None
        except (AssertionError, unittest.SkipTest) as error:
            outcomes[test] = type(error)
    assert [test for test, kind in outcomes.items() if kind is AssertionError] == ["test_a_log_concave_density_is_one"]
    assert sum(kind is unittest.SkipTest for kind in outcomes.values()) == 4


def test_without_a_density_the_author_is_asked() -> None:
    with pytest.raises(unittest.SkipTest, match="log_density is needed"):
        suite(laplace).test_the_density_is_a_density()


def test_a_spec_of_the_noise_is_proved_refuted_and_names_the_plugin(tmp_path: Path) -> None:
    catalog = registry(Logistic).catalog
    (tmp_path / "spec.yaml").write_text(TEXT)
    loaded = load_specs([tmp_path / "spec.yaml"], catalog)
    assert loaded.ok, loaded.diagnostics
    (audit,) = run(loaded.specs, catalog, store=Store(tmp_path / "store"), device="cpu").audits
    assert [verdict.verdict for verdict in audit.verdicts] == ["proved", "refuted"]
    assert {finding.origin for finding in audit.findings} == {"dpspec-logistic 1.0"}
    assert audit.verdicts[0].reason.startswith("Certified by dpspec-logistic 1.0: ")


def test_unknown_noises_and_divergences_are_refused(tmp_path: Path) -> None:
    catalog = registry(Logistic).catalog
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT.replace("noise: logistic", "noise: logistik"))
    (found,) = load_specs([path], catalog).diagnostics
    assert "did you mean 'logistic'" in f"{found.message} {found.help}"
    path.write_text(TEXT.replace("kind: approx-dp, epsilon: 2.6118, delta: 1e-6", "kind: zcdp, rho: 1.0"))
    assert any("no Renyi divergences are known" in d.message for d in run_diagnostics(path, catalog))
    use_noises({})
    path.write_text(TEXT)
    plain = build([OURS, Candidate(distribution="dpspec", version="0", plugin="c", value="dpspec_composition")]).catalog
    with pytest.raises(PluginError, match="no installed plugin offers noise 'logistic'"):
        run(load_specs([path], plain).specs, plain, store=Store(tmp_path / "store"), device="cpu")


def run_diagnostics(path: Path, catalog: Any) -> Any:
    from dpspec.engine.preparing.prepare import prepare

    return prepare(load_specs([path], catalog).specs[0], catalog).diagnostics
