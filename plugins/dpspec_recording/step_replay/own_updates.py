"""Updates of an optimizer's class whose updates are not recomputed, replayed with other records in the batch.

The mistake: the step of the script's own class reads the batch, as a lazy optimizer does that moves the used rows of an
embedding only. With the noisy gradients as executed and other records in the batch, the parameters get other values.

Updates of torch's classes except LBFGS and SparseAdam are recomputed instead
(:mod:`dpspec_recording.watching.optimizer_updates`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpspec_recording.step_replay.dependencies import TracedStep
from dpspec_recording.step_replay.gradient_map import GradientMap
from dpspec_recording.step_replay.timeline import Moment
from dpspec_recording.step_replay.trace import address_of
from dpspec_recording.watching.arrays import ReportedUpdates
from dpspec_recording.watching.optimizer_updates import STEPS


class OwnUpdates:
    """Replays the updates of traced steps.

    Attributes:
        replayed: The number of replayed updates.
        moved: Of these, the number that other records move, or whose numbers they change.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> None:
        """optimizer: the one that trains these parameters, if torch's class observes it."""
        self._optimizer, self._parameters = optimizer, parameters
        self.replayed = self.moved = 0

    @property
    def needs_replay(self) -> bool:
        """Whether the optimizer's class is not in ``STEPS``, and its updates are not reports of a loop."""
        kind = type(self._optimizer)
        return self._optimizer is not None and kind not in STEPS and not issubclass(kind, ReportedUpdates)

    def replay(self, step: TracedStep, begin: Moment, end: int) -> None:
        """Replay the update of a traced step with other records.

        An update that cannot be repeated does not count, nor one whose operations were not all traced.

        Args:
            step: The step.
            begin: When the update began: the optimizer's gradients.
            end: The number of operations when it was over.
        """
        if self._optimizer is None or not self.needs_replay or step.trace.failure:
            return
        with contextlib.suppress(Exception):  # operations that cannot be repeated
            update = GradientMap(
                step.trace,
                begin.tensors,
                self._parameters,
                start=begin.operations,
                end=end,
                sources_end=begin.operations,
                inputs_end=begin.operations,
                parameters=set(map(address_of, self._parameters)),
                options=_options(self._optimizer),
            )
            moved = update.moves(begin.values, step)
            self.moved += moved
            self.replayed += moved or self._is_whole(update, begin.values)

    @staticmethod
    def _is_whole(update: GradientMap, values: Sequence[Tensor]) -> bool:
        """Whether opposite gradients move each parameter: ``p.data = ...`` leaves the operations that were traced."""
        executed, opposite = update.apply(values), update.apply([-value for value in values])
        return not any(map(torch.equal, executed, opposite))


def _options(optimizer: torch.optim.Optimizer) -> set[float]:
    """The numbers by which a step may multiply or divide one that the script read, such as the learning rate."""
    leaves = tree_leaves(
        [[value for name, value in group.items() if name != "params"] for group in optimizer.param_groups]
    )
    return {1.0, *(abs(leaf) for leaf in leaves if type(leaf) is float and leaf)}
