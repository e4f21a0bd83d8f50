"""Run the conformance suite on an installed plugin without pytest, for ``dpspec plugins --check``."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpspec.registry.loader import FAMILIES, Registry, describe
from dpspec.testing.backend import BackendSuite
from dpspec.testing.inputs import CanarySuite, ScoreSuite
from dpspec.testing.mechanism import MechanismSuite
from dpspec.testing.provider import ProviderSuite


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The outcome of one test on one provider: ``broken`` holds the failure, ``left_out`` the reason for a skip."""

    provider: str
    demand: str
    broken: str = ""
    left_out: str = ""


#: Datasets and models get the common suite: their options are known to their authors only.
_SUITES = {"mechanism": MechanismSuite, "canary": CanarySuite, "score": ScoreSuite, "backend": BackendSuite}


def inspect(registry: Registry, family: str, kind: str) -> Iterator[Promise]:
    """Test one provider; a mechanism runs its example."""
    (field,) = (one.field for one in FAMILIES if one.name == family)
    provider = getattr(registry.catalog, field)[kind].provider
    # A suite without an author: any sampling scheme except Poisson may be missing.
    settings: dict[str, Any] = {
        "kind": kind,
        "family": family,
        "registry": classmethod(lambda cls: registry),
        "schemes": frozenset(),
        "options": getattr(provider, "as_declared", {}),
    }
    base = _SUITES.get(family, ProviderSuite)
    if base is BackendSuite and not provider.capabilities - {"iterates"}:
        # A backend trains models if it declares a capability of DP-SGD, or if it trains the small job.
        try:
            type("Suite", (BackendSuite,), settings).trained()  # type: ignore[attr-defined]
        except Exception:
            base = ProviderSuite
    suite = type("Suite", (base,), settings)()
    tests = (name for cls in reversed(type(suite).__mro__) for name in vars(cls) if name.startswith("test_"))
    for name in dict.fromkeys(tests):
        test = getattr(suite, name)
        broken = left_out = ""
        try:
            test()
        except unittest.SkipTest as reason:
            left_out = str(reason)
        except AssertionError as error:
            broken = str(error)
        except Exception as error:
            broken = f"it raises {describe(error)}"
        demand = " ".join((test.__doc__ or name).split()).replace("``", "`")
        yield Promise(provider=f"{family} {kind}", demand=demand, broken=broken, left_out=left_out)
