"""The conformance suite without pytest: what an installed plugin promises, one promise after the other, in words."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpspec.registry.descriptors import FAMILIES, Family
from dpspec.registry.foreign_code import describe
from dpspec.registry.loader import Registry
from dpspec.testing.attacks import CanarySuite, ScoreSuite
from dpspec.testing.backend import BackendSuite
from dpspec.testing.mechanism import MechanismSuite
from dpspec.testing.provider import ProviderSuite


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One demand of the contract on one provider. ``broken``: what was found instead; ``left_out``: why not tried."""

    provider: str
    demand: str
    broken: str = ""
    left_out: str = ""


def inspect(registry: Registry, distribution: str, plugin: str, only: str | None = None) -> Iterator[Promise]:
    """Try all promises of what one plugin offers, or of the kind ``only``; mechanisms run their example."""
    for family in FAMILIES:
        for kind, offered in sorted(getattr(registry.catalog, family.field).items()):
            if (offered.distribution, offered.plugin) == (distribution, plugin) and only in (None, kind):
                yield from _promises(registry, family, kind, offered.provider)


def _promises(registry: Registry, family: Family, kind: str, provider: Any) -> Iterator[Promise]:
    given = {"kind": kind, "family": family.name, **_given(registry, provider)}
    suite = type("Suite", (_suite(registry, family, provider),), given)()
    for name in _tests(type(suite)):
        test = getattr(suite, name)
        demand = " ".join((test.__doc__ or name).split()).replace("``", "`")
        broken = left_out = ""
        try:
            test()
        except unittest.SkipTest as reason:
            left_out = str(reason)
        except AssertionError as error:
            broken = str(error)
        except Exception as error:
            broken = f"it raises {describe(error)}"
        yield Promise(provider=f"{family.name} {kind}", demand=demand, broken=broken, left_out=left_out)


def _given(registry: Registry, provider: Any) -> dict[str, Any]:
    """What a suite needs to know that has no author: which plugins, that any scheme of sampling may be missing, and
    with which options a backend does what is declared."""
    return {
        "registry": classmethod(lambda cls: registry),
        "schemes": frozenset({"poisson"}),
        "options": getattr(provider, "as_declared", {}),
    }


def _suite(registry: Registry, family: Family, provider: Any) -> type[ProviderSuite]:
    """Data sets and models need options that only their authors' own tests can give."""
    suites: dict[str, type[ProviderSuite]] = {"mechanism": MechanismSuite, "canary": CanarySuite, "score": ScoreSuite}
    if family.name in suites:
        return suites[family.name]
    return BackendSuite if family.name == "backend" and _trains(registry, provider) else ProviderSuite


def _trains(registry: Registry, provider: Any) -> bool:
    """Whether a backend trains models: it says that it tells or plants something of DP-SGD, or it can just do it.

    Whoever releases something else may call it states, too; the small job is nothing for them.
    """
    if provider.capabilities - {"iterates"}:
        return True
    given = {"kind": provider.kind, "family": "backend", **_given(registry, provider)}
    try:
        type("Suite", (BackendSuite,), given).trained()  # type: ignore[attr-defined]
    except Exception:
        return False
    return True


def _tests(suite: type) -> list[str]:
    """The names of a suite's tests, those that all providers share first, each in the order of its file."""
    classes = reversed(suite.__mro__)
    return list(dict.fromkeys(name for cls in classes for name in vars(cls) if name.startswith("test_")))
