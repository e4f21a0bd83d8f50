"""One record, watched through every iterate by an adversary who knows all the data but no coin, batch or noise.

With g the record's clipped gradient at the model before a step, and a_j = <g, g_j> for every other record, the released
noisy sum S has, along g and without the record, mean q sum a_j and variance v = sigma^2 |g|^2 + q (1 - q) sum a_j^2. A
record that is drawn moves it by |g|^2. The step's score is the log-likelihood ratio of these two, both taken as normal,

    ln(1 - q + q exp((<g, S> - q sum a_j) |g|^2 / v - |g|^4 / (2 v))),

and scores add up over steps. All a_j come from one derivative of the losses along g. The test rests on the coin
alone: were the laws not normal, only power would be lost.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from dpspec.contract.providers import Observer, TrainingJob
from dpspec.training.optimizers import Invertible, update_of
from dpspec.training.persample import FlatModel
from dpspec.training.schedule import Phase, Schedule

#: Derivatives are taken for so many records at a time.
_ROWS = 4096


class RecordAttack(Observer):
    """Sums one record's log-likelihood ratio over the steps that are looked at. score: a float."""

    def __init__(
        self, job: TrainingJob, others: tuple[Tensor, Tensor], record: tuple[Tensor, Tensor], looks: int | None
    ) -> None:
        """``others`` (n, ...), (n,): all records but the one; ``record`` (1, ...), (1,). On the job's device."""
        self._model = FlatModel(copy.deepcopy(job.model), device=job.device)
        self._x, self._y = others
        self._record = record
        schedule = Schedule.of(job.phases, len(self._x))
        self._phases = list(schedule)
        update = update_of(job.options, job.expected_batch_size, schedule.total)
        if not isinstance(update, Invertible):
            raise ValueError(f"updates by {type(update).__name__} cannot be undone: the attack needs another optimizer")
        self._update = update
        total = schedule.total
        spaced = torch.linspace(1, total, min(looks or total, total), dtype=torch.float64).round().long()
        self._looked = set(spaced.tolist())
        self._previous: Tensor | None = None
        self.score = 0.0

    def released(self, step: int, state: Tensor) -> None:
        """Undo the update that led to ``state`` and score what it adds along the record's gradient."""
        previous, self._previous = self._previous, state.clone()
        if previous is None:
            return
        noisy = self._update.invert(previous, state).noisy
        if step in self._looked:
            found = float(self._ratio(previous, noisy, self._phases[step - 1]))
            self.score += found if abs(found) < 1e300 else 0.0  # a model that has diverged says nothing

    def _ratio(self, state: Tensor, noisy: Tensor, phase: Phase) -> Tensor:
        clip, q = phase.clip_norm, phase.sampler.inclusion
        row = self._model.rows(state, *self._record)[0]
        gradient = row * (clip / row.norm().clamp(min=clip))
        products = self._products(state, gradient, clip)
        square = gradient.double().square().sum()
        variance = (phase.deviation**2 * square + q * (1.0 - q) * products.square().sum()).clamp(min=1e-300)
        seen = torch.dot(gradient.double(), noisy.double()) - q * products.sum()
        shift = (seen * square - 0.5 * square**2) / variance
        return torch.logaddexp(torch.log1p(torch.tensor(-q)).double(), torch.log(torch.tensor(q)).double() + shift)

    def _products(self, state: Tensor, gradient: Tensor, clip: float) -> Tensor:
        """<g, g_j> (n,) for the clipped gradients g_j of all other records."""
        found = [torch.zeros(0, dtype=torch.float64, device=state.device)]
        for x, y in zip(torch.split(self._x, _ROWS), torch.split(self._y, _ROWS), strict=True):
            along = _along(self._model, state, gradient, x, y).double()
            found.append(along * (clip / self._model.norms(state, x, y).clamp(min=clip)))
        return torch.cat(found)


def _along(model: FlatModel, state: Tensor, direction: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The derivatives (b,) of the records' losses at ``state`` (P,) along ``direction`` (P,).

    With weights u on the losses, the gradient of their sum is linear in u: its inner product with the direction has
    these derivatives as its own gradient.
    """
    with torch.enable_grad():
        at = state.detach().requires_grad_()
        losses = nn.functional.cross_entropy(model.logits(at, x), y, reduction="none")
        weights = torch.ones_like(losses).requires_grad_()
        (gradient,) = torch.autograd.grad(losses, at, grad_outputs=weights, create_graph=True)
        (found,) = torch.autograd.grad(gradient, weights, grad_outputs=direction)
    return found.detach()
