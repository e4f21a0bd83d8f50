"""Old names of public functions, classes and arguments, which work for two minor versions after a rename.

A module of :data:`RENAMED` defines ``__getattr__ = old_names(__name__)``. An entry leaves the table with the second
minor version after ``since``: :func:`expired` finds it, and a test fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")

#: The number of minor versions for which an old name stays.
KEPT = 2


@dataclass(frozen=True)
class Rename:
    """The new name in the same module, and the minor version that renamed it, such as ``(0, 3)``."""

    new: str
    since: tuple[int, int]


#: The renames by module and old name.
RENAMED: Mapping[str, Mapping[str, Rename]] = {
    "dpspec.testing": {},
    "dpspec.kit": {},
    "dpspec.sampling": {},
}

#: New names of arguments, and of attributes of the same name, since 0.3.
_NOISE, _SIZE, _RATE = Rename("noise_multiplier", (0, 3)), Rename("group_size", (0, 3)), Rename("rate", (0, 3))

#: The renames of arguments by callable and old name; of a class, also of its attributes.
RENAMED_ARGUMENTS: Mapping[str, Mapping[str, Rename]] = {
    "dpspec.epsilon": {"noise": _NOISE},
    "dpspec.accounting.DoubleMixture.poisson": {"q": _RATE, "sigma": _NOISE},
    "dpspec.accounting.Mixture": {"sigma": _NOISE},
    "dpspec.accounting.Mixture.fixed": {"k": _SIZE, "sigma": _NOISE},
    "dpspec.accounting.Mixture.full": {"k": _SIZE, "sigma": _NOISE},
    "dpspec.accounting.Mixture.poisson": {"k": _SIZE, "q": _RATE, "sigma": _NOISE},
    "dpspec.accounting.PrivacyLoss.gaussian": {"sigma": Rename("std", (0, 3))},
    "dpspec.accounting.RandomAllocation": {"sigma": _NOISE, "members": _SIZE},
    "dpspec.accounting.RandomAllocation.has_noise": {"sigma": _NOISE, "members": _SIZE},
    "dpspec.accounting.TruncatedPoisson": {"k": _SIZE, "sigma": _NOISE},
    "dpspec.accounting.discrete_gaussian": {"sigma": Rename("scale", (0, 3))},
    "dpspec.accounting.discrete_gaussian_rdp": {"sigma": Rename("scale", (0, 3))},
    "dpspec.accounting.largest_sum_pair": {"sigma": _NOISE},
    "dpspec.accounting.sampled_gaussian_integer_rdp": {"sigma": _NOISE},
    "dpspec.accounting.sampled_gaussian_rdp": {"sigma": _NOISE},
    "dpspec.kit.too_little_noise": {"noise": _NOISE},
}


def _last(rename: Rename) -> str:
    return f"{rename.since[0]}.{rename.since[1] + KEPT - 1}"


def _warn(text: str, rename: Rename) -> None:
    message = f"{text} is now {rename.new}; the old name works up to dpspec {_last(rename)}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def old_arguments(name: str) -> Callable[[T], T]:
    """Decorate a function or class so that old keywords of :data:`RENAMED_ARGUMENTS` work, with a warning."""
    renames = RENAMED_ARGUMENTS[name]

    def decorate(decorated: Any) -> Any:
        if isinstance(decorated, type):
            decorated.__init__ = decorate(decorated.__init__)  # type: ignore[misc]
            for old, rename in renames.items():
                setattr(decorated, old, property(_reader(f"{name}.{old}", rename)))
            return decorated

        @wraps(decorated)
        def call(*values: Any, **keywords: Any) -> Any:
            for old, rename in renames.items() if keywords else ():
                if old in keywords:
                    if rename.new in keywords:
                        raise TypeError(f"{name} got both {old} and {rename.new}, which are one argument")
                    _warn(f"the argument {old} of {name}", rename)
                    keywords[rename.new] = keywords.pop(old)
            return decorated(*values, **keywords)

        return call

    return decorate


def _reader(name: str, rename: Rename) -> Callable[[Any], Any]:
    def read(owner: Any) -> Any:
        _warn(name, rename)
        return getattr(owner, rename.new)

    return read


def old_names(module: str) -> Callable[[str], Any]:
    """The function ``__getattr__`` of a module: an old name gives the object of the new one, with a warning."""

    def find(name: str) -> Any:
        rename = RENAMED.get(module, {}).get(name)
        if rename is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", rename)
        return getattr(import_module(module), rename.new)

    return find


def expired(version: tuple[int, int]) -> Iterator[str]:
    """The old names that this minor version may remove."""
    for owner, names in (*RENAMED.items(), *RENAMED_ARGUMENTS.items()):
        for old, rename in names.items():
            if version[0] > rename.since[0] or version[1] >= rename.since[1] + KEPT:
                yield f"{owner}.{old}"
