"""Fair coins that follow from a seed alone, fixed before training by a digest that tells nothing of them.

The coins of m canaries are the first m bits of SHAKE-256 of 32 bytes. These are the system's own randomness, or SHA-256
of a seed that somebody gave. SHA-256 of the same bytes is written down before the first step. Whoever has the bytes
afterwards can see that the coins are those; whoever has the digest alone cannot tell them.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from dpspec.errors import UsageError

Array: TypeAlias = np.ndarray[Any, Any]

#: How many bytes all coins follow from.
BYTES = 32

#: The kind of canaries that are no records: they are added to sums of gradients.
GRADIENTS = "gradients"

#: Seeds that are given are below this.
MOST_SEEDS = 2**63


@dataclass(frozen=True)
class CoinSource:
    """Where the coins of one planting come from. seed: the one that was given, None for the system's randomness."""

    secret: bytes
    seed: int | None

    @classmethod
    def of(cls, seed: int | None) -> Self:
        """From a seed in [0, 2**63), or from the system's randomness; ``UsageError`` for other seeds."""
        if seed is None:
            return cls(secrets.token_bytes(BYTES), None)
        if type(seed) is not int or not 0 <= seed < MOST_SEEDS:
            raise UsageError(f"seed must be a whole number from 0 on and below 2**63, or None, got {seed!r}")
        return cls(hashlib.sha256(f"dpspec seed {seed}".encode()).digest(), seed)

    def coins(self, count: int) -> Array:
        """(count,) int8: 1 for a canary that is in, 0 for one that is left out."""
        drawn = hashlib.shake_256(b"dpspec coins" + self.secret).digest(-(-count // 8))
        return np.unpackbits(np.frombuffer(drawn, dtype=np.uint8), count=count).astype(np.int8)

    def generator(self) -> np.random.Generator:
        """What canaries are made with: another stream of the same bytes, which tells nothing of the coins."""
        return np.random.default_rng(int.from_bytes(hashlib.sha256(b"dpspec canaries" + self.secret).digest(), "big"))

    @property
    def commitment(self) -> str:
        """The digest of the bytes, in hexadecimal."""
        return hashlib.sha256(b"dpspec commitment" + self.secret).hexdigest()
