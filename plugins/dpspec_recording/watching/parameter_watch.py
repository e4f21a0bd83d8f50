"""Parameters between steps: whether they moved."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from xxhash import xxh3_128

from dpspec_recording.fingerprints import KEY, differ, fingerprint, is_plain, memory_of
from dpspec_recording.shards import local

#: The largest number of steps whose parameters are remembered, by 16 bytes each.
_MOST_STEPS = 2**20

_Guarded = Callable[[Callable[[], None]], None]


class ParameterWatch:
    """The fingerprint of all parameters: in the host's memory one digest, otherwise one of each parameter."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._whole = all(local(p) is p for p in self._parameters)
        self._addresses: list[tuple[int, tuple[int, ...]]] | None = None
        self._memories: list[Any] | None = None  # at these addresses; None if not in the host's memory
        self._last = self._read()
        self._earlier: set[bytes] = set()

    def moved(self) -> bool | Tensor:
        """Whether a bit of a parameter changed since the last :meth:`advance`."""
        now = self._read()
        return now != self._last if isinstance(now, bytes) else differ(self._last, now)

    def returned(self) -> bool:
        """Whether the parameters, which moved, are those that an earlier step left; only in the host's memory."""
        now = self._read()
        return isinstance(now, bytes) and now in self._earlier

    def advance(self) -> None:
        if isinstance(self._last, bytes) and len(self._earlier) < _MOST_STEPS:
            self._earlier.add(self._last)
        self._last = self._read()

    def _read(self) -> Any:
        parameters = self._parameters if self._whole else [local(p) for p in self._parameters]
        addresses = [(p.data_ptr(), p.stride()) for p in parameters]
        if addresses != self._addresses:
            self._addresses, self._memories = addresses, None
            if all(map(is_plain, parameters)):
                self._memories = [memory_of(p.detach()) if p.is_contiguous() else None for p in parameters]
        if self._memories is None:
            return [fingerprint(p) for p in parameters]
        whole = xxh3_128(seed=KEY[0])
        for p, memory in zip(parameters, self._memories, strict=True):
            whole.update(memory_of(p.detach().contiguous()) if memory is None else memory)
        return whole.digest()
