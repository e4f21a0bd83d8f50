"""What real records add to the steps of many runs, asked at once where runs are trained together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpspec.training.gradients import memory
from dpspec.training.gradients.clipping import Clip, clipper
from dpspec.training.gradients.fetching import at_hand
from dpspec.training.gradients.stacked_models import StackedModel, tiles
from dpspec.training.measure.population import Population
from dpspec.training.measure.residuals import Residuals


class Populations:
    """Computes the population of every watcher whose run is at the same step when the first of them asks.

    Watchers of runs that train one after the other are served one by one.
    """

    def __init__(self, watchers: Sequence[Residuals], module: nn.Module) -> None:
        """``watchers`` look at runs on equal real records, of models like ``module``; they share one copy of the rows.

        From here on they ask here.
        """
        first = watchers[0]
        self._watchers = tuple(watchers)
        self._x, self._y = first.x, first.y
        self._model = StackedModel(module, self._x, self._y)
        self._ready: dict[int, tuple[Tensor, Population]] = {}
        self._most: int | None = None
        for watcher in watchers:
            watcher.x, watcher.y, watcher.populations = self._x, self._y, self

    def of(self, watcher: Residuals, state: Tensor, clip: Clip) -> Population:
        """The population of ``watcher``, which has just seen the step after ``state`` (P,)."""
        at, population = self._ready.pop(id(watcher), (None, None))
        if at is state and population is not None:
            return population
        waiting = [other for other in self._watchers if _is_a_step_behind(other, watcher)]
        states = [state] + [other.previous for other in waiting if other.previous is not None]
        first, *others = self._all(torch.stack(states), clip)
        self._ready = {id(w): (s, p) for w, s, p in zip(waiting, states[1:], others, strict=True)}
        return first

    def _all(self, states: Tensor, clip: Clip) -> list[Population]:
        how, runs, records = clipper(clip), len(states), len(self._x)

        def added(chunk: int) -> tuple[Tensor, Tensor]:
            sums = torch.zeros_like(states)
            squares = torch.zeros(runs, dtype=torch.float64, device=states.device)
            for at, places in tiles(runs, records, chunk):
                some = len(states[at])
                x, y = (rows[places].expand(some, -1, *rows.shape[1:]) for rows in (self._x, self._y))
                inside = torch.ones(x.shape[:2], dtype=torch.bool, device=states.device)
                norms = self._model.add_clipped(sums[at], states[at], x, y, inside, how)
                squares[at] += norms.square().sum(1)
            return sums, squares

        (sums, squares), self._most = memory.halving(added, self._model.chunk(how), self._most)
        return [Population(total, at_hand(square)) for total, square in zip(sums, squares, strict=True)]


def _is_a_step_behind(other: Residuals, watcher: Residuals) -> bool:
    return other is not watcher and other.steps == watcher.steps - 1 and other.previous is not None
