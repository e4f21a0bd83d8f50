"""The place of this process among those that train together.

Ranks meet in the store of the process group, without a collective call: a rank that does not record blocks no other.
The first one puts 32 random bytes there, which no file contains. The id of the run, the keys of all digests and the
directions of sketches follow from them.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from dataclasses import dataclass

import torch

from dpspec.errors import UsageError

#: The number of this recording in the process; the same on all ranks of one training.
_RECORDINGS = itertools.count()


@dataclass(frozen=True)
class Group:
    """rank: of this process, below ``world``. secret: common to all ranks of a run, and in no file."""

    rank: int
    world: int
    secret: bytes

    @property
    def run(self) -> str:
        return self.digest(b"run").hex()

    @property
    def folder(self) -> str:
        return f"rank-{self.rank}"

    def digest(self, *content: bytes) -> bytes:
        whole = hashlib.blake2b(key=self.secret, digest_size=16)
        for one in content:
            whole.update(one)
        return whole.digest()


def meet() -> Group:
    """The group of a recording that begins now; ``UsageError`` without an initialized process group."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError("the optimizer is for several processes, and torch.distributed is not initialized")
    store = distributed.distributed_c10d._get_default_store()
    key, mine = f"dpspec/{next(_RECORDINGS)}", secrets.token_hex(32)
    try:
        common = bytes(store.compare_set(key, "", mine)).decode()
    except RuntimeError as error:
        raise UsageError(f"the processes cannot agree on a run in the store of torch.distributed: {error}") from error
    return Group(distributed.get_rank(), distributed.get_world_size(), bytes.fromhex(common))
