"""Cache keys and seeds: what makes two trials the same trial."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dpspec.contract import Facts, FrozenMap
from dpspec.contract.canonical import digest

_SEED_BITS = 63


def trial_key(inputs: FrozenMap, facts: Facts, revisions: FrozenMap, chunk: Sequence[int], index: int) -> str:
    """The content address of one trial.

    It covers the inputs that trials may read, the rows' digest, the revisions of mechanism, backend, dataset and
    model, and the place of the trial in its chunk (trials of one chunk may be computed together). Claims,
    confidence and the number of runs are in none of these, so changing them never trains again.
    """
    return digest(
        {"inputs": inputs, "data": facts.digest, "revisions": revisions, "chunk": list(chunk), "index": index}
    )


def trial_seed(inputs: FrozenMap, index: int, *purpose: str) -> int:
    """A 63-bit seed for one purpose within one trial, derived from the trial's inputs and its index."""
    text = "\x1f".join([digest(inputs), str(index), *purpose])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - _SEED_BITS)
