"""Run the conformance suite on an installed plugin without pytest, for ``dpspec plugins --check``."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

from dpspec.contract import Facts, thaw
from dpspec.registry.loader import FAMILIES, Registry, describe
from dpspec.testing.attack_method import AttackMethodSuite
from dpspec.testing.backend import BackendSuite
from dpspec.testing.command import CommandSuite
from dpspec.testing.inputs import CanarySuite, DatasetSuite, LossSuite, ModelSuite, ScoreSuite
from dpspec.testing.mechanism import MechanismSuite
from dpspec.testing.noise import NoiseSuite
from dpspec.testing.provider import ProviderSuite
from dpspec.testing.reporter import ReporterSuite
from dpspec.testing.sampling_scheme import SamplingSchemeSuite


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The outcome of one test on one provider.

    ``broken`` holds the failure, ``left_out`` the reason for a skip, ``remark`` a limit of the tests.
    """

    provider: str
    demand: str
    broken: str = ""
    left_out: str = ""
    remark: str = ""


#: The suite of each family of providers.
_ALL: list[type[ProviderSuite]] = [MechanismSuite, DatasetSuite, ModelSuite, LossSuite, CanarySuite, ScoreSuite]
_ALL += [BackendSuite, ReporterSuite, AttackMethodSuite, SamplingSchemeSuite, NoiseSuite, CommandSuite]
_SUITES = {suite.family: suite for suite in _ALL}


#: Suites that need the provider's options, which are known to its authors only unless all have defaults.
_WITH_OPTIONS = (DatasetSuite, LossSuite, ModelSuite)


def inspect(registry: Registry, family: str, kind: str) -> Iterator[Promise]:
    """Test one provider; a mechanism runs its example."""
    (field,) = (candidate.field for candidate in FAMILIES if candidate.name == family)
    provider = getattr(registry.catalog, field)[kind].provider
    # A suite without an author: any sampling scheme except Poisson may be missing.
    settings: dict[str, Any] = {"kind": kind, "family": family, "schemes": frozenset()}
    settings["registry"] = classmethod(lambda cls: registry)
    settings["compares_itself"] = True
    base = _SUITES.get(family, ProviderSuite)
    if base is BackendSuite:
        settings["options"] = provider.as_declared
    if base is SamplingSchemeSuite:
        settings["options"] = {name: _SAMPLING[name] for name in provider.takes}
    required = thaw(getattr(provider, "schema", {})).get("required", [])
    untried = f"its options have no default: {', '.join(required)}" if base in _WITH_OPTIONS and required else ""
    if base is ModelSuite and not untried:
        fitting = _fitting_facts(type("Suite", (ModelSuite,), settings), tokens=provider.tokens)
        settings["facts"] = fitting or ModelSuite.facts
        if fitting is None:
            untried = "the module accepts no records of the shapes that were tried: subclass ModelSuite with its facts"
    if base is BackendSuite and not provider.capabilities - {"iterates"}:
        # A backend trains models if it declares a capability of DP-SGD, or if it trains the small job.
        try:
            type("Suite", (BackendSuite,), settings).trained()  # type: ignore[attr-defined]
        except Exception:
            base = ProviderSuite
    if base is BackendSuite and provider.schemes is not None and "poisson" not in provider.schemes:
        untried = "it trains no Poisson batches: subclass BackendSuite with its `job`"
    if base is MechanismSuite and _reads_recording(type("Suite", (MechanismSuite,), settings), registry):
        untried = "its example reads a recorded run"
    suite = type("Suite", (base,), settings)()
    tests = (name for cls in reversed(type(suite).__mro__) for name in vars(cls) if name.startswith("test_"))
    for name in dict.fromkeys(tests):
        test = getattr(suite, name)
        broken = left_out = ""
        try:
            if untried and name not in (*vars(ProviderSuite), *(_OF_BUILDING if not required else ())):
                raise unittest.SkipTest(untried)
            _call(test)
        except unittest.SkipTest as reason:
            left_out = str(reason)
        except AssertionError as error:
            broken = str(error)
        except Exception as error:
            broken = f"it raises {describe(error)}"
        demand = " ".join((test.__doc__ or name).split()).replace("``", "`")
        yield Promise(provider=f"{family} {kind}", demand=demand, broken=broken, left_out=left_out)
    if isinstance(suite, MechanismSuite | AttackMethodSuite) and not untried:
        judged = "bound" if isinstance(suite, MechanismSuite) else "test"
        with suppress(AssertionError):  # a promise above reports the failure
            remark = "\n".join(suite.weakest_passing())
            yield Promise(provider=f"{family} {kind}", demand=f"How wrong a {judged} would still pass", remark=remark)


def _reads_recording(suite: type[MechanismSuite], registry: Registry) -> bool:
    """Whether the example's backend reads a recording instead of training."""
    with suppress(AssertionError):  # a test reports an invalid example
        backends = (registry.catalog.backends.get(spec.training.kind) for spec in suite.load())
        return any(offered is not None and offered.provider.recording for offered in backends)
    return False


#: Options of a sampling scheme of 12 records, as its author may set them.
_SAMPLING = {"rate": 0.25, "batch_size": 3, "max_batch": 4, "epoch_steps": 4, "batches_per_epoch": 1}

#: Shapes of records with which a model is tried.
_SHAPES = ((1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 16, 16), (3, 224, 224), (64,))

#: Tests of a model that need no records.
_OF_BUILDING = (
    "test_counting_parameters_is_light",
    "test_parameters_are_those_of_the_built_module",
    "test_building_is_reproducible_by_seed",
)


def _fitting_facts(suite: Any, *, tokens: bool) -> Facts | None:
    """Return the first facts whose records the model accepts, or under which it cannot be built; None without any."""
    shapes = [(16,)] if tokens else _SHAPES
    for shape in shapes:
        facts = replace(ModelSuite.facts, shape=shape, features=prod(shape), vocabulary=50 if tokens else None)
        suite.facts = facts
        try:
            module = suite.factory().build(0)
        except ValueError:  # the factory refuses such records
            continue
        except Exception:
            return facts
        with suppress(Exception):
            module(suite()._records(0))
            return facts
    return None


def _call(test: Callable[..., None]) -> None:
    """Call a test, with a temporary folder if it has a parameter ``tmp_path``."""
    if "tmp_path" not in signature(test).parameters:
        test()
        return
    with tempfile.TemporaryDirectory() as folder:
        test(tmp_path=Path(folder))
