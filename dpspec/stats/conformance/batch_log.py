"""The log of the batches that a backend or a recording reports, one per phase."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import ceil, floor

import numpy as np

from dpspec.contract import Phase
from dpspec.stats.conformance import sampling
from dpspec.stats.conformance.batch_checks import BatchSums, Common
from dpspec.stats.conformance.epochs import Array, EpochLog, EpochSums

#: Maximum total number of records in remembered batches, and of remembered batches; more distant ones are not compared.
_REMEMBERED, _FARTHEST = 2**24, 100_000

#: Attributes of a log that its state keeps.
_KEPT = ["_sizes", "_counts", "_in_epoch", "_overlaps", "repeats", "_astray", "_spread", "_above", "most_often"]

_NONE: Array = np.zeros(0, dtype=np.int32)


def compared_lags(phases: Sequence[Phase], records: int, further: Collection[int] = ()) -> tuple[int, ...]:
    """Lags at which batches of a data loader exclude or repeat each other: within an epoch, and one epoch apart."""
    tried = {1, 2}
    for phase in phases:
        if 0.0 < (rate := phase.rate(records)) < 1.0:
            tried |= {floor(1.0 / rate), ceil(1.0 / rate), phase.sampling.epoch_steps or 1}
    steps, batch = sum(phase.steps for phase in phases), max(phase.expected_batch(records) for phase in phases)
    most = min(steps - 1, _FARTHEST, _REMEMBERED / max(batch, 1.0))
    near = sorted(lag for lag in tried if lag <= most)[:8]
    return tuple(sorted({*near, *(lag for lag in further if 0 < lag <= most)}))


class BatchLog:
    """Counts of the batches of a phase, and of their records in common with the batches ``lags`` steps before.

    ``places``: the number of indices, if it is not the number of records. ``counted``: whether to count the inclusions
    of each record. ``earlier``: the remembered batches, which logs of several phases may share.

    Attributes:
        repeats: Number of records drawn twice in a batch.
        most_often: The maximum number of inclusions, once the log has ended and if they are counted.
    """

    def __init__(
        self,
        phase: Phase,
        records: int,
        lags: Sequence[int] = (),
        *,
        places: int | None = None,
        counted: bool = True,
        earlier: deque[Array] | None = None,
    ) -> None:
        self._phase, self._rate, self._places, self._lags = phase, phase.rate(records), places or records, lags
        self._random = 0.0 < self._rate < 1.0
        self._earlier: deque[Array] = deque(maxlen=max(lags, default=1)) if earlier is None else earlier
        size = phase.sampling.batch_size
        self._epochs = EpochLog(records, size) if phase.sampling.is_shuffled and size is not None else None
        self._counted, self._counts, self._in_epoch = counted, _NONE, _NONE
        self._overlaps = np.zeros((len(lags), 2), dtype=np.int64)
        self._sizes: list[int] = []
        self.repeats = self._astray = 0
        self._spread: int | None = None
        self._above: float | None = None
        self.most_often: int | None = None

    @property
    def is_complete(self) -> bool:
        return len(self._sizes) == self._phase.steps

    def add(self, members: Array, *, lost: bool = False) -> None:
        """Count a batch. ``lost``: a later part may draw it again, so a random one is not compared."""
        if lost and self._random:
            return
        epoch_steps = self._phase.sampling.epoch_steps
        if not self._sizes:
            self._counts = np.zeros(self._places if self._counted else 0, dtype=np.int32)
            self._in_epoch = np.zeros(self._places if epoch_steps else 0, dtype=np.int32)
        self._sizes.append(len(members))
        once = np.unique(members)
        self.repeats += len(members) - len(once)
        for counts, lag in zip(self._overlaps, self._lags, strict=True):
            if self._random and lag <= len(self._earlier):
                earlier = self._earlier[-lag]
                places = np.minimum(np.searchsorted(once, earlier), max(0, len(once) - 1))
                counts += (int((once[places] == earlier).sum()) if len(once) else 0, len(earlier))
        self._earlier.append(once)
        if self._epochs is not None:
            self._epochs.add(once)
        if self._counted:
            np.add.at(self._counts, members, 1)
        if epoch_steps:
            np.add.at(self._in_epoch, members, 1)
            if len(self._sizes) % epoch_steps == 0:
                self._astray += int((self._in_epoch != self._phase.sampling.batches_per_epoch).sum())
                self._in_epoch[:] = 0
        if self.is_complete:
            self.end()

    def end(self) -> None:
        """Sum up the numbers of inclusions, and forget them."""
        if self._counted and self._spread is None:
            counts = self._counts if self._sizes else np.zeros(self._places, dtype=np.int32)
            self._spread = int((counts.astype(np.int64) ** 2).sum())
            self._above = sampling.excess(counts, len(self._sizes) * self._rate)
            self.most_often = int(counts.max(initial=0))
            self._counts = _NONE

    def sums(self) -> BatchSums:
        sizes = np.array(self._sizes, dtype=np.int64)
        overlaps = zip(self._lags, self._overlaps.tolist(), strict=True)
        allocated = None
        if epoch_steps := self._phase.sampling.epoch_steps:
            whole, mean = len(sizes) // epoch_steps, self._places * self._phase.sampling.batches_per_epoch / epoch_steps
            spread = float(np.square(sizes[: whole * epoch_steps] - mean).sum())
            allocated = EpochSums(whole=whole, astray=self._astray, spread=spread)
        sized = len(sizes) and self._random and self._phase.sampling.batch_size is None
        return BatchSums(
            steps=len(sizes),
            total=int(sizes.sum()),
            squares=int((sizes**2).sum()),
            spread=self._spread,
            above=self._above,
            sizes=sampling.summary(sizes) if sized else None,
            overlaps=tuple(Common(lag, *counts) for lag, counts in overlaps if counts[1]),
            together=None if self._epochs is None else self._epochs.sums(),
            early=None if self._epochs is None else self._epochs.early,
            epochs=allocated,
        )

    def state(self) -> dict[str, Array]:
        """Return what :meth:`restore` resumes from, without the remembered batches."""
        kept = {name: np.array(value) for name in _KEPT if (value := getattr(self, name)) is not None}
        epochs = {} if self._epochs is None else self._epochs.state()
        return kept | {f"epochs.{name}": array for name, array in epochs.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        for name in _KEPT:
            if name in state:
                array = state[name]
                setattr(self, name, array.tolist() if name == "_sizes" or array.ndim == 0 else array.copy())
        if self._epochs is not None:
            self._epochs.restore({name: state[f"epochs.{name}"] for name in self._epochs.state()})
