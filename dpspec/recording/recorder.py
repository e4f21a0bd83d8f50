"""``dpspec.record``: a training is watched from inside its own script, and what it does is written down.

Here is what scripts call. What is seen meanwhile is put together in :mod:`dpspec.recording.watched_training`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec.recording.parts import Parts, checked_declaration
from dpspec.recording.planting.planted import Planted
from dpspec.recording.planting.scoring import Loss, scores_of, table
from dpspec.recording.watched_training import WatchedTraining


def record(
    folder: str | PathLike[str],
    *,
    model: nn.Module,
    optimizer: Any = None,
    loader: Any = None,
    engine: Any = None,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    rate: float | None = None,
    records: int | None = None,
    planted: Planted | None = None,
    loss: Loss | None = None,
) -> Recorder:
    """A recorder of one training, for ``with``: it watches while the block runs, and changes nothing of it.

    folder: where the run is written; new or empty. model: the module that is trained, as ``make_private`` returned it.
    optimizer: the one that the loop steps: Opacus' ``DPOptimizer`` (flat, per-layer, adaptive or ghost clipping, around
    any optimizer of torch), or, for a loop of one's own, one of torch or None. loader: the one that the loop iterates,
    or that ``BatchMemoryManager`` wraps. engine: Opacus' ``PrivacyEngine``, or an accountant with a ``history``.

    A loop of one's own says at each step what it did, by :meth:`Recorder.sampled`, :meth:`Recorder.clipped`,
    :meth:`Recorder.summed`, :meth:`Recorder.noised` and :meth:`Recorder.stepped`, and here, or later by
    :meth:`Recorder.declare`, what it means to do: noise_multiplier, the deviation of the noise on a sum in clip norms,
    >= 0; clip_norm, > 0; rate, in (0, 1], with which Poisson sampling draws each of ``records`` records. By
    :meth:`Recorder.summed` the noise that it tells of is found in the gradients that ``optimizer`` gets; without it no
    claim about a loop of one's own is proved. Opacus' own optimizer and loader say all of it themselves.

    planted: what :func:`dpspec.plant` returned, for a loop without a loader; a loader over it says so itself. Once the
    block is over :meth:`Recorder.score` scores its canaries. Those of kind ``gradients`` are the one thing that the
    recorder adds to a training, to the sums of clipped gradients, as whoever plants them asks for.

    loss: turns on the sensitivity probe, for Opacus' optimizer and a loader over a dataset that can be indexed.
    ``loss(model, batch)`` returns the loss of each record, (b,), as for :meth:`Recorder.score`. At a few random steps
    the recorder computes the clipped sum with and without a record, on a copy of the model.

    Raises ``UsageError`` for a folder that holds anything, and for what the recorder does not know, by name: wrappers
    that spread a step over processes, optimizers that are derived from Opacus'.

        with dpspec.record("run", model=model, optimizer=optimizer, loader=loader, engine=engine):
            train(model, optimizer, loader)
    """
    given = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": records}
    return Recorder(Path(folder), model, optimizer, loader, engine, planted, given, loss)


class Recorder:
    """Watches one training; made by :func:`record`.

    A fault while looking on is told of by a warning and ends the recording, never the training. Nothing here draws a
    random number of the training's, and none of its tensors is written to, but for gradient canaries that were planted.
    """

    def __init__(
        self,
        folder: Path,
        model: Any,
        optimizer: Any,
        loader: Any,
        engine: Any,
        planted: Planted | None,
        given: dict[str, Any],
        loss: Loss | None = None,
    ) -> None:
        """As for :func:`record`; nothing is written before the block begins."""
        self.folder = folder
        self._parts = Parts(model, optimizer, loader, engine, planted, given, loss)
        self._training: WatchedTraining | None = None
        self._scored = False

    def __enter__(self) -> Self:
        """Begin: write the header, and watch."""
        if self._training is not None:
            raise UsageError("a recorder records once: call dpspec.record again, with another folder")
        self._training = WatchedTraining(self.folder, self._parts)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End: stop watching, and write what is known now."""
        training = self._training
        assert training is not None
        training.detach()
        training.guarded(lambda: training.end(kind))
        training.writer = None

    # What a loop of one's own says.

    def sampled(self, indices: Tensor | Sequence[int]) -> None:
        """Records that were drawn for this step, by number; several calls before :meth:`stepped` add up.

        Of a planted data set the places that were drawn, with or without those of canaries that are left out.
        """
        pending = self._telling("sampled").own
        drawn = indices.detach().cpu().numpy() if isinstance(indices, Tensor) else np.asarray(list(indices))
        drawn, planted = drawn.reshape(-1).astype(np.int64), self._parts.planted
        pending.members.append(drawn if planted is None else np.asarray(planted.present(drawn), dtype=np.int64))

    def clipped(self, norms: Tensor | Sequence[float]) -> None:
        """The l2 norms (b,) of what was added up for each record, after clipping; several calls add up."""
        pending = self._telling("clipped").own
        given = norms.detach() if isinstance(norms, Tensor) else torch.tensor(list(norms))
        pending.norms.append(given.reshape(-1).double())
        pending.add_rows(given.numel())

    def noised(self, noise: Tensor | Iterable[Tensor]) -> None:
        """The noise that was added to the sum of clipped gradients, before it was divided by anything.

        One tensor of all coordinates in the order of ``model.parameters()``, or one for each of its trained tensors.
        """
        training = self._telling("noised")
        if training.own.noised:
            raise UsageError(
                "noised was called twice in one step: call it once, and run.stepped() at the end of each step"
            )
        training.tell_noise(noise)

    def summed(self, total: Tensor | Iterable[Tensor]) -> None:
        """The sum of what was clipped, before noise is added to it and before it is divided by anything.

        As for :meth:`noised`. What the optimizer that was given steps with must be this and the noise, over a divisor:
        whatever else there is, or is missing, is seen to the last digit.
        """
        training = self._telling("summed")
        if training.own.summed is not None:
            raise UsageError(
                "summed was called twice in one step: call it once, and run.stepped() at the end of each step"
            )
        training.tell_sum(total)

    def stepped(self) -> None:
        """The parameters were moved: the step is over, and is written."""
        training = self._telling("stepped")
        training.guarded(training.own_step)

    def declare(
        self,
        *,
        noise_multiplier: float | None = None,
        clip_norm: float | None = None,
        rate: float | None = None,
    ) -> None:
        """What the loop means to do from now on, where that changes; as for :func:`record`."""
        training = self._telling("declare")
        given = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": None}
        training.declared |= {key: value for key, value in checked_declaration(given).items() if value is not None}

    def _telling(self, what: str) -> WatchedTraining:
        if self._parts.clipping is not None:
            raise UsageError(
                f"run.{what} is for loops of one's own; Opacus' optimizer is watched, nothing is to be said"
            )
        if self._training is None:
            raise UsageError(f"run.{what} was called outside of the recorder's with block")
        return self._training

    # Once the block is over.

    def score(self, model: nn.Module | None = None, loss: Loss | None = None, *, batch_size: int = 256) -> None:
        """Score all canaries of the planted data set, those that are in and those that are left out, and write it down.

        model: the one that was trained. loss: ``loss(model, batch)`` gives the loss of each record of a batch, (b,), as
        the loader puts batches together; what is low for canaries that were trained on. It is asked about all canaries
        by one rule, ``batch_size`` at a time, in their order, the model in its mode for evaluation and without
        gradients, and is not told which of them are in. Coins and scores go to ``canaries.npz`` in the folder, which
        speaks of records and is not for publication. ``dpspec check`` shows what they prove.

        Of canaries of kind ``gradients`` neither model nor loss is asked for: the score is how far all gradients that
        the optimizer stepped with went along the canary's direction.

        Canaries are scored once: whoever scores again, and takes what shows most, has no bound.

        Raises ``UsageError`` where nothing was planted, before the end of the block, for a second time, where ``loss``
        does not give a number for each record, without a model and a loss of records, and with one of gradients.
        """
        planted, training = self._parts.planted, self._training
        if planted is None:
            raise UsageError("nothing was planted: give the loader, or planted=, what dpspec.plant returned")
        if self._scored:
            raise UsageError("canaries are scored once: to score by another rule, train again with other coins")
        if training is None or training.ended is None:
            over = training is not None and training.writer is None
            why = "the recording came to no end" if over else "the block is not over"
            raise UsageError(f"run.score is for after the block: {why}")
        if training.gradients is not None:
            if model is not None or loss is not None:
                raise UsageError("canaries of kind 'gradients' are scored by no model and no loss: write run.score()")
            values, final = training.gradients.scores(), True
        elif model is None or loss is None:
            raise UsageError("canaries that are records are scored by a model and a loss: run.score(model, loss)")
        else:
            collate = getattr(self._parts.loader, "collate_fn", None) or planted.collate or default_collate
            values, final = scores_of(model, loss, planted.canaries, collate, batch_size), training.is_final(model)
        content = table(planted.coins, values, planted.source)
        self._scored = True
        training.ended.scored(content, canaries=planted.count, final=final)
