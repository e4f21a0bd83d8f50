"""The inclusion bits of canaries, to which a recording commits when it begins.

The bits of m canaries are the first m bits of SHAKE-256 of 32 bytes, which are the system's own randomness or SHA-256
of a given seed. The header states SHA-256 of these bytes, which does not reveal the bits; ``canaries.npz`` holds the
bytes, which prove them.
"""

import hashlib
import io
import secrets
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from dpspec.errors import UsageError

Array: TypeAlias = np.ndarray[Any, Any]

#: The number of bytes that determine all inclusion bits.
BYTES = 32

#: Canaries that are not records: the recorder adds them to sums of gradients.
GRADIENTS = "gradients"

#: Canaries that are sequences of token ids.
NEW_TOKENS, RANDOM_TOKENS = "new-tokens", "random-tokens"

#: Seeds are below this.
MOST_SEEDS = 2**63


@dataclass(frozen=True)
class CoinSource:
    """The source of the inclusion bits. seed: the given one, None for the system's randomness."""

    secret: bytes
    seed: int | None

    @classmethod
    def of(cls, seed: int | None) -> Self:
        """From a seed in [0, 2**63), or from the system's randomness; ``UsageError`` for other seeds."""
        if seed is None:
            return cls(secrets.token_bytes(BYTES), None)
        if type(seed) is not int or not 0 <= seed < MOST_SEEDS:
            raise UsageError(f"seed must be an integer from 0 to 2**63 - 1, or None, got {seed!r}")
        return cls(hashlib.sha256(f"dpspec seed {seed}".encode()).digest(), seed)

    def coins(self, count: int) -> Array:
        drawn = hashlib.shake_256(b"dpspec coins" + self.secret).digest(-(-count // 8))
        return np.unpackbits(np.frombuffer(drawn, dtype=np.uint8), count=count).astype(np.int8)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(hashlib.sha256(b"dpspec canaries" + self.secret).digest(), "big"))

    @property
    def commitment(self) -> str:
        return hashlib.sha256(b"dpspec commitment" + self.secret).hexdigest()


def table(coins: Array, scores: Array, source: CoinSource) -> bytes:
    """The file of scores: an npz of ``coin`` (m,) int8, ``score`` (m,) float64, and ``secret``, their source."""
    content = io.BytesIO()
    secret = np.frombuffer(source.secret, dtype=np.uint8)
    np.savez(content, coin=coins.astype(np.int8), score=scores.astype(np.float64), secret=secret)
    return content.getvalue()
