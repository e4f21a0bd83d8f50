"""Methods of attacks by the kind of their evidence: dpspec's methods and the methods of installed plugins.

This module imports neither numpy nor scipy, so that the registry can list methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from dpspec.contract.attacks import AttackMethod, EvidenceTest, Statistic
from dpspec.errors import PluginError


def _method(kind: str, summary: str, *, anytime: bool = False, **statistics: Statistic) -> AttackMethod:
    """A method whose test has the kind's name."""
    test = f"dpspec.stats.attacks.own_methods:{kind.title().replace('-', '')}"
    return AttackMethod(kind=kind, summary=summary, statistics=statistics, test=test, anytime=anytime)


_GUESSES = "Correct guesses about the canaries of one run"
_SEVERAL = f"{_GUESSES}, for several numbers of guesses"
_POSITIVES = "Positives among many runs, above a threshold that was fixed in advance"
_ORDERED = "Inclusion bits and scores of many runs, in their order, valid at any stopping time"
_RANKED = "Inclusion bits of many runs by ascending score"

OWN_METHODS = (
    _method("one-run", _GUESSES, canaries="count", guesses="count", correct="count"),
    _method("one-run-ladder", _SEVERAL, canaries="count", guesses="counts", correct="counts"),
    _method(
        *("many-run", _POSITIVES), present="count", absent="count", true_positives="count", false_positives="count"
    ),
    _method("many-run-ranked", _RANKED, outcomes="outcomes"),
    _method("many-run-sequential", _ORDERED, anytime=True, coins="outcomes", scores="counts"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """A descriptor with its test; ``origin`` is the distribution of a third-party plugin, otherwise empty."""

    descriptor: AttackMethod
    test: EvidenceTest
    origin: str = ""

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the test.

        Raises:
            PluginError: The function of a third-party plugin fails.
        """
        try:
            return getattr(self.test, function)(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may raise SystemExit
            if not self.origin:
                raise
            raise self.fault(f"{function}() raises {type(error).__name__}: {error}") from error

    def fault(self, text: str) -> PluginError:
        return PluginError(f"attack method {self.descriptor.kind!r} of {self.origin or 'dpspec'}: {text}")


_find_foreign: Callable[[str], Method | None] = lambda kind: None  # noqa: E731 - the registry replaces it


def search_plugins(find: Callable[[str], Method | None]) -> None:
    """Let ``find`` return the methods of third-party plugins; the registry calls this when it is imported."""
    global _find_foreign
    _find_foreign = find


@cache
def _own(kind: str) -> Method | None:
    for method in OWN_METHODS:
        if method.kind == kind:
            module, _, name = method.test.partition(":")
            return Method(descriptor=method, test=getattr(import_module(module), name)())
    return None


def method_of(kind: str) -> Method | None:
    """The method whose evidence is of this kind; None if no plugin offers it."""
    return _own(kind) or _find_foreign(kind)
