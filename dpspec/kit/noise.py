"""The pair of a distribution of noise that a spec names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpspec.contract.noise import NOISES

if TYPE_CHECKING:
    from dpspec.accounting import Pair


def noise_pair(kind: str, scale: float, sensitivity: float) -> Pair:
    """The pair of noise of a third-party distribution on one number; see :class:`~dpspec.contract.NoiseKind`.

    Raises:
        ValueError: No plugin offers the kind, its code returns no pair, or a pair whose upper ends are estimates.
    """
    from dpspec.accounting import Pair

    if kind not in NOISES:
        raise ValueError(f"no installed plugin offers noise {kind!r}")
    module, _, name = NOISES[kind].code.partition(":")
    pair: object = getattr(import_module(module), name)(scale, sensitivity)
    if not isinstance(pair, Pair):
        raise ValueError(f"noise {kind!r} is a {type(pair).__name__}, not a dpspec.accounting.Pair")
    if pair.has_estimated_upper_end:
        raise ValueError(f"noise {kind!r} has estimated upper ends, which bound nothing")
    return pair
