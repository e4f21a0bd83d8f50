"""What a backend says that it did, boiled down while it trains: batches drawn, noise added, norms after clipping.

Logs are kept as counts, moments and a few coordinates per step; :mod:`dpspec.training.reported` turns them into the
JSON that :mod:`dpspec.stats.conformance` tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.providers import Observer
from dpspec.training.memories import Memory

#: At most so many coordinates of each step's noise are kept, evenly spaced, and at most so many numbers in all.
_WIDTH, _NUMBERS = 4096, 2**22


class SamplingLog(Observer):
    """What the backend says it drew.

    inclusions: (records,) int64, in how many batches each record was. sizes: the batch size of each step.
    repeats: how often a record was drawn that was in the batch already.
    spreads: per phase that was completed, the sum over records of its squared number of inclusions.
    overlaps: (phases, lags, 2) int64: how many of a batch's records were also in the batch ``lag`` steps before, and
        how many that batch held.
    """

    inclusions: Tensor
    sizes: list[int]
    repeats: int
    spreads: list[int]
    overlaps: Tensor
    _before: Tensor

    def __init__(self, records: int, phases: Sequence[int] = (), lags: Sequence[int] = ()) -> None:
        """``records``: real and planted ones together. ``phases``: the steps of each; ``lags``: which to compare."""
        self.lags = tuple(lags)
        self._records = records
        self._phases = max(1, len(phases))
        self._ends = list(accumulate(phases))
        self._earlier: deque[Tensor] = deque(maxlen=max(self.lags, default=1))
        self.restore({})

    def sampled(self, step: int, indices: Tensor) -> None:
        """Count the batch; raises ``IndexError`` for a record that does not exist."""
        drawn = indices.to("cpu", torch.int64)
        self.inclusions.index_add_(0, drawn, torch.ones_like(drawn))
        self.sizes.append(len(drawn))
        once = torch.unique(drawn)
        self.repeats += len(drawn) - len(once)
        self._overlap(once)
        if len(self.sizes) in self._ends:
            here = self.inclusions - self._before
            self.spreads.append(int((here * here).sum()))
            self._before = self.inclusions.clone()

    def _overlap(self, drawn: Tensor) -> None:
        phase = len(self.spreads)
        if self.lags and phase < len(self.overlaps):
            now = torch.zeros(len(self.inclusions), dtype=torch.bool)
            now[drawn] = True
            for number, lag in enumerate(self.lags):
                if lag <= len(self._earlier):
                    earlier = self._earlier[-lag]
                    self.overlaps[phase, number, 0] += int(now[earlier].sum())
                    self.overlaps[phase, number, 1] += len(earlier)
        self._earlier.append(drawn)

    def state(self) -> Memory:
        """All counts, and the batches that later ones are compared with."""
        return {
            "inclusions": self.inclusions.numpy().copy(),
            "sizes": np.array(self.sizes, dtype=np.int64),
            "repeats": np.array(self.repeats),
            "spreads": np.array(self.spreads, dtype=np.int64),
            "overlaps": self.overlaps.numpy().copy(),
            "before": self._before.numpy().copy(),
            "earlier": np.concatenate([np.zeros(0, dtype=np.int64), *(b.numpy() for b in self._earlier)]),
            "lengths": np.array([len(b) for b in self._earlier], dtype=np.int64),
        }

    def restore(self, state: Memory) -> None:
        """Go on counting; an empty memory begins anew."""
        none = np.zeros(self._records, dtype=np.int64)
        self.inclusions = torch.tensor(state.get("inclusions", none))
        self._before = torch.tensor(state.get("before", none))
        self.sizes = [int(n) for n in state.get("sizes", ())]
        self.spreads = [int(n) for n in state.get("spreads", ())]
        self.repeats = int(state.get("repeats", 0))
        self.overlaps = torch.tensor(state.get("overlaps", np.zeros((self._phases, len(self.lags), 2), dtype=np.int64)))
        self._earlier.clear()
        if "lengths" in state:
            self._earlier.extend(torch.split(torch.tensor(state["earlier"]), [int(n) for n in state["lengths"]]))


class NoiseLog(Observer):
    """What the backend says it added, as moments.

    count: parameters per step. squares: the squared norm of each step's noise. products: the inner product of each
    step's noise with the step before, which is small where noise is fresh.
    rows: per step, the noise of some evenly spaced coordinates, the same ones at each step.
    """

    def __init__(self, steps: int = 1) -> None:
        """``steps``: how many are expected; it decides how many coordinates are kept of each."""
        self.count = 0
        self.squares: list[float] = []
        self.products: list[float] = []
        self.rows: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._width = kept_width(steps)
        self._previous: Tensor | None = None

    @property
    def sum_of_squares(self) -> float:
        """Over all steps and parameters."""
        return sum(self.squares)

    def noised(self, step: int, noise: Tensor) -> None:
        """Add one step's noise (parameters,) to the moments."""
        self.count = len(noise)
        self.squares.append(float(torch.linalg.vector_norm(noise, dtype=torch.float64)) ** 2)
        if self._previous is not None:
            self.products.append(float(torch.dot(noise.double(), self._previous.to(noise).double())))
        self._previous = noise.clone()
        self.rows.append(spaced(noise, self._width))

    def state(self) -> Memory:
        """All moments, the kept coordinates, and the last step's noise."""
        kept: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = {
            "count": np.array(self.count),
            "squares": np.array(self.squares),
            "products": np.array(self.products),
        }
        if self._previous is not None:
            kept |= {"previous": self._previous.cpu().numpy().copy(), "rows": np.stack(self.rows)}
        return kept

    def restore(self, state: Memory) -> None:
        """Go on; an empty memory begins anew."""
        self.count = int(state.get("count", 0))
        self.squares = [float(v) for v in state.get("squares", ())]
        self.products = [float(v) for v in state.get("products", ())]
        self.rows = list(state.get("rows", ()))
        self._previous = torch.tensor(state["previous"]) if "previous" in state else None


class NormLog(Observer):
    """What the backend says the contributions weighed after clipping.

    largest: the largest norm of each step, 0 if it is empty. counts: how many contributions there were.
    """

    def __init__(self) -> None:
        self.largest: list[float] = []
        self.counts: list[int] = []

    def clipped(self, step: int, norms: Tensor) -> None:
        """Keep the largest of ``norms`` (b,)."""
        self.largest.append(float(norms.max()) if len(norms) else 0.0)
        self.counts.append(len(norms))

    def state(self) -> Memory:
        """Both lists."""
        return {"largest": np.array(self.largest), "counts": np.array(self.counts, dtype=np.int64)}

    def restore(self, state: Memory) -> None:
        """Go on; an empty memory begins anew."""
        self.largest = [float(v) for v in state.get("largest", ())]
        self.counts = [int(n) for n in state.get("counts", ())]


def kept_width(steps: int) -> int:
    """How many coordinates of a step are kept, so that ``steps`` steps need no more than 16 MiB."""
    return max(64, min(_WIDTH, _NUMBERS // max(1, steps)))


def spaced(vector: Tensor, width: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """At most ``width`` evenly spaced entries of a vector, in float32 on the CPU."""
    stride = max(1, ceil(len(vector) / width))
    kept: np.ndarray[tuple[int], np.dtype[np.float32]] = vector[::stride].to("cpu", torch.float32).numpy().copy()
    return kept
