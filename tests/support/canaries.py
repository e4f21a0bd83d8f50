"""Canary records of the kinds that dpspec offers, made as an audit makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpspec.contract import Facts
from dpspec.contract.attacks import Asked, Records
from dpspec.contract.frozen import FrozenMap
from dpspec.registry.foreign_code import resolve
from dpspec.training.providers import CANARIES

#: The kinds of records.
KINDS = tuple(canary.kind for canary in CANARIES if canary.space == "input")

Array = np.ndarray[Any, Any]


def make(
    kind: str, count: int, x: Array, y: Array, classes: int, seed: int, *, vocabulary: int | None = None
) -> Records:
    """``count`` canaries of a kind after the training records ``x``, ``y``."""
    (canary,) = [canary for canary in CANARIES if canary.kind == kind]
    features = int(np.prod(x.shape[1:]))
    facts = Facts(records=len(x), features=features, classes=classes, digest=None, vocabulary=vocabulary)
    made: Records = resolve(canary.make)(Asked(count=count, seed=seed, facts=facts, options=FrozenMap(), x=x, y=y))
    return made
