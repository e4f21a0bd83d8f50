"""The observations of one rank that are compared with the other ranks' observations.

Sketches are projections on secret directions that are equal on all ranks, so the sketch of a sum over the ranks is the
sum of their sketches. Digests have the run's key, and show equal bits.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpspec_recording.fingerprints import Tally, fingerprint, key_of, readable_digest
from dpspec_recording.folder.events import DIRECTIONS, Indices, RankStep
from dpspec_recording.ranks.group import Group
from dpspec_recording.shards import local
from dpspec_recording.watching.generators import same_randomness
from dpspec_recording.watching.noise_sketch import MeasuredNoise, NoiseSketch

#: The bytes of a digest that a step keeps, and the digest of nothing.
_BYTES, _NONE = 8, bytes(8)

#: Largest noise in standard deviations that half precision holds.
_LARGEST = 6e4

#: The number of records whose contents the ranks compare.
_RECORDS = 8


def data_digest(group: Group, dataset: Any) -> str:
    """The digest of some records, at places that follow from the run's secret; "" if they cannot be read.

    Random transformations draw equal numbers on all ranks, and the generators of the training are restored.
    """
    seed = int.from_bytes(group.digest(b"records")[:4], "little")
    try:
        indices = np.random.default_rng(seed).integers(0, len(dataset), size=_RECORDS).tolist()
        with same_randomness(torch.device("cpu"), seed):
            contents = [readable_digest(dataset[index]) for index in indices]
    except Exception:  # code of the dataset's own class
        return ""
    return group.digest(*(content.encode() for content in contents)).hex() if all(contents) else ""


class RankWatch:
    """Observes the gradients of a rank before and after they are summed over all ranks, and its sampler.

    group: of the ranks. sharded: whether each rank holds rows of the parameters; starts: the place of the first
    coordinate of each.

    Attributes:
        other: Of a sharded model, the number of gathered parameters that have other rows than this rank's, and of steps
            at which a parameter has different values in two passes, or a frozen one others than at an earlier step.
    """

    def __init__(
        self,
        group: Group,
        optimizer: Any,
        trained: Sequence[Tensor],
        sampler: Any,
        shards: Sequence[tuple[int, int]] = (),
    ) -> None:
        """optimizer: Opacus'. sampler: Opacus' distributed one, or None. shards: as in the header."""
        self.group, self.sharded = group, bool(shards)
        self._optimizer, self._sampler = optimizer, sampler
        self._noisy, self._trained = list(optimizer.params), list(trained)
        seed = int.from_bytes(group.digest(b"directions"), "little")
        self.sketch = NoiseSketch([p.numel() for p in self._noisy], most=DIRECTIONS, seed=seed)
        self.starts = [start for start, _ in shards]
        sizes = [local(p).numel() for p in self._noisy]
        self._of_rows = NoiseSketch(sizes, seed=seed, width=self.sketch.width) if self.sharded else None
        self.other, self._key = Tally(), key_of(group.digest(b"seed") + group.digest(b"factors"))
        self._gathered: list[tuple[int, Any]] = []
        self._frozen: dict[int, str] = {}
        self._forget()
        # The options of the sampler's order, and the place of each record in it.
        self._order: tuple[tuple[bool, int, int], Indices] | None = None

    def _forget(self) -> None:
        self._own = self._total = self._noise = torch.zeros(0)
        self._gradients = self._state = _NONE

    def reduction(self, *, over: bool) -> None:
        if over:
            self._total, self._gradients = self._along(), self._digest(p.grad for p in self._noisy)
        else:
            self._own = self._along()

    def add(self, along: Tensor) -> None:
        """Add a clipped sum of this rank, along the common directions."""
        self._own = self._own + along if len(self._own) else along

    def gather(self, number: int, gathered: Tensor) -> None:
        """Observe a parameter that a pass uses, which all ranks gather from the same rows; frozen ones come last."""
        self._gathered.append((number, fingerprint(gathered, self._key)))

    def _passes(self) -> bytes:
        """The digest of the parameters in the passes of the step."""
        gathered, self._gathered = self._gathered, []
        fingerprints = {(number, _told(gathered_bits)) for number, gathered_bits in gathered}
        frozen = [entry for entry in fingerprints if entry[0] >= len(self._noisy)]
        changed = any(text != self._frozen.setdefault(number, text) for number, text in frozen)
        self.other.add(changed or len(fingerprints) > len({number for number, _ in fingerprints}))
        return self._digest_of(repr(sorted(fingerprints)).encode())

    def before_noise(self) -> None:
        if self.sharded:
            device, generator = self._noisy[0].device, torch.default_generator
            if device.type == "cuda":
                generator = torch.cuda.default_generators[device.index or 0]
            generator = self._optimizer.generator or generator
            self._state = self._digest_of(generator.get_state().numpy().tobytes())

    def after_noise(self, measured: MeasuredNoise, deviation: float) -> None:
        """Observe the noise that this rank adds, and of sharded parameters its rows of the sum of all ranks."""
        sketch = self.sketch
        if self._of_rows is not None:
            self._total = sketch.along(sketch.fold(measured.sums, self.starts))[0] * measured.scale
            sketch = self._of_rows
        if sketch.complete:
            sizes = [layer.shape[1] for layer in measured.sums]
            along = sketch.along(sketch.fold(torch.split(measured.noise, sizes, dim=1)))[0]
            self._noise = (along / deviation if deviation > 0.0 else along).clamp(-_LARGEST, _LARGEST)

    def step(self, drawn: Indices | None, epoch: Any = None) -> RankStep:
        """drawn: the records of the step. epoch: of the sampler when it began to draw them."""
        own_sketch, total_sketch, noise_sketch = (
            along.float().cpu().numpy() for along in (self._own, self._total, self._noise)
        )
        foreign, order = self._foreign(drawn, epoch)
        rank_step = RankStep(
            gradients=self._gradients,
            parameters=self._passes() if self.sharded else self._digest(self._trained),
            seed=self._seed(self._sampler),
            noise_seed=self._seed(self._optimizer),
            noise_state=self._state,
            order=order,
            foreign=foreign,
            own=own_sketch,
            total=total_sketch,
            noise=noise_sketch.astype(np.float16),
        )
        self._forget()
        return rank_step

    def _along(self) -> Tensor:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._noisy]
        return self.sketch.along(self.sketch.fold(gradient.detach().reshape(1, -1) for gradient in grads))[0]

    def _digest_of(self, *content: bytes) -> bytes:
        return self.group.digest(*content)[:_BYTES]

    def _digest(self, tensors: Iterable[Tensor | None]) -> bytes:
        return self._digest_of(
            *(_told(fingerprint(tensor, self._key)).encode() for tensor in tensors if tensor is not None)
        )

    def _seed(self, drawing: Any) -> bytes:
        """The digest of the seed of an object's generator; of the rank's number if it has none."""
        generator = getattr(drawing, "generator", None) or torch.default_generator
        try:
            seed = int(generator.initial_seed()).to_bytes(16, "little", signed=True)
        except (RuntimeError, TypeError, AttributeError):
            seed = self.group.rank.to_bytes(8, "little")
        return self._digest_of(b"seed", seed)

    def _foreign(self, drawn: Indices | None, epoch: Any) -> tuple[int, bytes]:
        """The number of drawn records outside of this rank's share, and the digest of the order of all records.

        Opacus' sampler shuffles all records by a seed that the ranks share; rank r owns places r, r + world, ...
        """
        sampler, world = self._sampler, self.group.world
        if sampler is None or drawn is None:
            return 0, _NONE
        seed = int(sampler.shuffle_seed) + int(sampler.epoch if epoch is None else epoch)
        key = bool(sampler.shuffle), seed, int(sampler.total_size)
        if self._order is None or self._order[0] != key:
            order = torch.arange(key[2])
            if key[0]:
                order = torch.randperm(key[2], generator=torch.Generator().manual_seed(key[1]))
            positions = np.empty(key[2], dtype=np.int64)
            positions[order.numpy()] = np.arange(key[2])
            self._order = key, positions
        in_range = drawn[(drawn >= 0) & (drawn < key[2])]
        mine = self._order[1][in_range] % world == self.group.rank
        return len(drawn) - int(mine.sum()), self._digest_of(b"order", repr(key).encode())


def _told(fingerprint: Any) -> str:
    return str(fingerprint.tolist() if isinstance(fingerprint, Tensor) else fingerprint)
