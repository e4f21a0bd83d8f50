"""The place of this process among those that train together.

Ranks meet in the store of the process group, without a collective call: a rank that does not record blocks no other.
The first one puts 32 random bytes there, which no file contains, and the number of the part. The id of the run, the
keys of all digests and the directions of sketches follow from these bytes. Usually one rank saves checkpoints, and the
others learn of it from the store.
"""

import hashlib
import itertools
import secrets
from dataclasses import dataclass
from typing import Any

import torch

from dpspec.errors import UsageError

#: The number of this recording in the process; the same on all ranks of one training.
_RECORDINGS = itertools.count()


class Signal:
    """Whether any rank saved a checkpoint since this one asked."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key, self._seen = store, key, 0

    def send(self) -> None:
        self.received()
        self._seen += 1
        self._store.set(f"{self._key}/{self._seen}", "1")

    def received(self) -> bool:
        before = self._seen
        while self._store.check([f"{self._key}/{self._seen + 1}"]):
            self._seen += 1
        return self._seen > before


@dataclass(frozen=True)
class Group:
    """rank: of this process, below ``world``. secret: common to all ranks of a run, and in no file. part: the number
    of the recorded part. saved: whether ranks saved checkpoints."""

    rank: int
    world: int
    secret: bytes
    part: int = 1
    saved: Signal | None = None

    @property
    def run(self) -> str:
        return self.digest(b"run").hex()

    @property
    def folder(self) -> str:
        return f"rank-{self.rank}"

    def digest(self, *content: bytes) -> bytes:
        whole = hashlib.blake2b(key=self.secret, digest_size=16)
        for chunk in content:
            whole.update(chunk)
        return whole.digest()


def meet(part: int) -> Group:
    """The group of a recording that begins now; the first rank determines the number of the ``part`` for all."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError("the optimizer is for several processes, and torch.distributed is not initialized")
    key = f"dpspec/{next(_RECORDINGS)}"
    common, number = agreed(key, f"{secrets.token_hex(32)} {part}").split()
    rank, world = distributed.get_rank(), distributed.get_world_size()
    return Group(rank, world, bytes.fromhex(common), int(number), Signal(_store(), f"{key}/saved"))


def agreed(key: str, mine: str) -> str:
    """The value that the first of the processes gave for a key."""
    try:
        return bytes(_store().compare_set(key, "", mine)).decode()
    except RuntimeError as error:
        raise UsageError(f"the processes cannot agree on a run in the store of torch.distributed: {error}") from error


def _store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()
