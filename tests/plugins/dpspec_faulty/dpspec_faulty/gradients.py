"""Faults of clipping and of the clipped gradients: each replaces the contributions of a batch in the native loop.

Every record's gradient is a row, which keeps the faults readable. Reports are those of a team that does not know its
bug.
"""

import torch

from dpspec.contract import TrainingJob
from dpspec.training.gradients.persample import Clip, ClippedSum, FlatModel, clipper, per_example_gradients
from dpspec.training.loop.native import tensors


class BrokenContributions:
    """The gradients of a batch, one row per record, and a broken way to add them up."""

    def __init__(self, job: TrainingJob) -> None:
        self._model = FlatModel(job.model, device=job.device)
        self._x, self._y = tensors(job.x, job.y, job.device)
        self._canaries = job.canaries

    @property
    def records(self) -> int:
        """Return real records and canaries."""
        return len(self._x) + (self._canaries.count if self._canaries is not None else 0)

    def __call__(self, state: torch.Tensor, indices: torch.Tensor, clip: Clip) -> ClippedSum:
        """The sum (P,) that the batch adds, and the norms (b,) that the loop believes it to consist of."""
        real = indices[indices < len(self._x)].to(state.device)
        rows = [self.real_rows(state, real)]
        if self._canaries is not None:
            rows.append(self._canaries.gradients(indices[indices >= len(self._x)] - len(self._x)).to(state))
        return self.add(torch.cat(rows), clipper(clip).clip_norm)

    def real_rows(self, state: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """The gradients (b, P) of real records."""
        return per_example_gradients(self._model, self._x[indices], self._y[indices], state=state)

    def add(self, rows: torch.Tensor, clip_norm: float) -> ClippedSum:
        """Transform the gradients (b, P): clip each, unless that is the fault."""
        kept = clipped(rows, clip_norm)
        return ClippedSum(kept.sum(0), norms(kept))


class ClipAfterAveraging(BrokenContributions):
    """mean = sum of gradients / batch; the mean is clipped. One record can be all of it."""

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        self._batch = job.expected_batch_size

    def add(self, rows: torch.Tensor, clip_norm: float) -> ClippedSum:
        """The clipped mean times the batch size, as one contribution."""
        mean = clipped(rows.sum(0, keepdim=True) / self._batch, clip_norm)
        return ClippedSum(self._batch * mean[0], norms(mean))


class ClipPerLayer(BrokenContributions):
    """Each layer's part of a gradient is clipped to the whole clip norm."""

    def add(self, rows: torch.Tensor, clip_norm: float) -> ClippedSum:
        """Return the norms of whole contributions."""
        parts = torch.split(rows, list(self._model.layout.sizes), dim=1)
        kept = torch.cat([clipped(part, clip_norm) for part in parts], dim=1)
        return ClippedSum(kept.sum(0), norms(kept))


class LayerUnclipped(BrokenContributions):
    """Sum the last layer's weights and biases without clipping."""

    def add(self, rows: torch.Tensor, clip_norm: float) -> ClippedSum:
        """Return the norms of the clipped part, the only ones that the loop computes."""
        sizes = self._model.layout.sizes
        head = sum(sizes[-2:])
        body = clipped(rows[:, :-head], clip_norm)
        return ClippedSum(torch.cat([body, rows[:, -head:]], dim=1).sum(0), norms(body))


class ClipAccumulatedSum(BrokenContributions):
    """``loss.backward()`` on pieces of eight records, clipped once per piece."""

    def add(self, rows: torch.Tensor, clip_norm: float) -> ClippedSum:
        """One norm per piece."""
        pieces = [clipped(piece.sum(0, keepdim=True), clip_norm) for piece in torch.split(rows, 8)]
        kept = torch.cat(pieces) if len(rows) else rows
        return ClippedSum(kept.sum(0), norms(kept))


class AugmentedCopies(BrokenContributions):
    """Four views of each record, slightly perturbed, treated as four records."""

    views = 4

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        self._source = torch.Generator(job.device).manual_seed(job.seed % 2**63)

    def real_rows(self, state: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return the gradients of one view, with a new perturbation each time."""
        x = self._x[indices]
        shaken = x + 0.05 * torch.randn(x.shape, generator=self._source, device=x.device)
        return per_example_gradients(self._model, shaken, self._y[indices], state=state)

    def __call__(self, state: torch.Tensor, indices: torch.Tensor, clip: Clip) -> ClippedSum:
        """The sum over all views of all records."""
        parts = [super(AugmentedCopies, self).__call__(state, indices, clip) for _ in range(self.views)]
        return ClippedSum(sum((p.sum for p in parts), torch.zeros_like(state)), torch.cat([p.norms for p in parts]))


class PrivateNormalisation(BrokenContributions):
    """x' = (x - mean) / std, with both from the training records and without accounting."""

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        deviation, mean = torch.std_mean(self._x, dim=0)
        self._x = (self._x - mean) / deviation.clamp_min(1e-3)


def clipped(rows: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Rows (b, n) scaled down to at most ``clip_norm``."""
    return rows * (clip_norm * (1 - 1e-6) / rows.norm(dim=1, keepdim=True).clamp_min(clip_norm))


def norms(rows: torch.Tensor) -> torch.Tensor:
    """Their lengths (b,) in float64."""
    found: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return found
