"""``dpspec.record``: records a training from inside its own script.

The observers are in :mod:`dpspec_recording.watched_training`, and the reports of a custom loop in
:mod:`dpspec_recording.adapters.custom_loop`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from torch import nn
from torch.utils.data import default_collate

from dpspec.errors import UsageError
from dpspec_recording.adapters.adapter import Adapter
from dpspec_recording.audited_steps import SHARE, AuditedSteps
from dpspec_recording.folder.coins import table
from dpspec_recording.folder.free_number import numbered
from dpspec_recording.folder.place import remove_recording
from dpspec_recording.folder.writer import RunWriter
from dpspec_recording.parts import Parts
from dpspec_recording.planting.planted import Planted, scores_of
from dpspec_recording.received_weights import LoadedTensors, ReceivedWeights
from dpspec_recording.recognized import Loss
from dpspec_recording.watched_training import WatchedTraining

#: A tensor of torch, or an array of NumPy or JAX.
Array: TypeAlias = Any


def record(
    folder: str | PathLike[str],
    *,
    model: nn.Module | Sequence[Any],
    optimizer: Any = None,
    loader: Any = None,
    engine: Any = None,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    rate: float | None = None,
    records: int | None = None,
    planted: Planted | None = None,
    public: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    received: Mapping[str, Any] | Iterable[Any] | None = None,
    audit: float = SHARE,
) -> Recorder:
    """Record one training: use the result in a ``with`` statement around the training loop.

    A custom loop reports each step by :meth:`Recorder.sampled`, :meth:`Recorder.clipped`, :meth:`Recorder.summed`,
    :meth:`Recorder.noised` and :meth:`Recorder.stepped`, and declares its intentions here or by
    :meth:`Recorder.declare`. The recorder compares the reported sum and noise with the gradients that ``optimizer``
    gets; without :meth:`Recorder.summed`, ``noise_multiplier`` and ``clip_norm`` no claim about such a loop is proved.

    In a training of several processes with Opacus' distributed optimizer, every process records; process K writes
    ``rank-K`` in the folder, and ``dpspec check`` joins them.

        with dpspec.record("run", model=model, optimizer=optimizer, loader=loader, engine=engine):
            train(model, optimizer, loader)

    Args:
        folder: The run's folder, new or empty. ``{n}`` in its last part is the first free number: ``runs/{n}``.
        model: The trained module, as ``make_private`` returned it. A loop in JAX or NumPy gives the list of its
            parameters, for example ``jax.tree.leaves(params)``, in float32 or float64.
        optimizer: The one that the loop steps: Opacus' ``DPOptimizer`` (flat, per-layer, adaptive or ghost clipping,
            around any optimizer of torch), or an optimizer of torch or None for a custom loop. With a list of
            parameters: optax's gradient transformation that gets the noisy gradients, or None.
        loader: The one that the loop iterates, or that ``BatchMemoryManager`` wraps.
        engine: Opacus' ``PrivacyEngine``, or an accountant with a ``history``.
        noise_multiplier: For custom loops: the standard deviation of the noise on a sum in clip norms, >= 0.
        clip_norm: For custom loops, > 0.
        rate: For custom loops: the probability, in (0, 1], that Poisson sampling draws a record.
        records: For custom loops: the number of records.
        planted: The result of :func:`dpspec.plant`, for a loop without a loader. :meth:`Recorder.score` scores its
            canaries after the block. The recorder adds canaries of kind ``gradients`` to the clipped sums, and changes
            nothing else of the training.
        public: Data that holds no private record: a loader, a dataset, a tensor, or a list or tuple of these. Gradients
            of it alone may be added after the noise, and another optimizer may step by them. Replayed steps compare the
            tensors that these gradients read with its rows.
        resume: Continue the recording in the folder, if it has one, after loading a checkpoint.
        overwrite: Remove an earlier recording in the folder when the block begins. Other files refuse it.
        received: With ``resume=True``, for a client of a federation: the weights that the server sent for this round, a
            ``state_dict()`` or the list of its arrays. The model must have exactly these when the block begins.
        audit: The probability, in (0, 1], of an audit of each step after the first 50: clipped sums, gradients, updates
            and parameters in each pass are compared at audited steps. 1 audits all.

    Raises:
        UsageError: The folder is not empty, or of another training, public data has private records, or the recorder
            does not support a part: FullyShardedDataParallel, optimizers derived from Opacus'.
    """
    declaration = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": records}
    if overwrite and resume:
        raise UsageError("overwrite=True and resume=True exclude each other: leave one out")
    if received is not None and not resume:
        raise UsageError("received= is for the rounds of one client in one folder: give resume=True too")
    training_parts = Parts(model, optimizer, loader, engine, planted, declaration, public=public)
    AuditedSteps(audit)  # refuses other shares before the block begins
    weights = None if received is None else ReceivedWeights(received)
    new_folder = numbered(Path(folder).absolute())
    return Recorder(new_folder, training_parts, resume=resume, overwrite=overwrite, audit=audit, received=weights)


class Recorder:
    """Observes one training; made by :func:`record`.

    A fault of the recorder causes a warning and ends the recording, never the training. The recorder draws no random
    number from the training's generators, and writes to none of its tensors except for gradient canaries.
    """

    def __init__(
        self,
        folder: Path,
        training_parts: Parts,
        *,
        resume: bool = False,
        overwrite: bool = False,
        audit: float = SHARE,
        received: ReceivedWeights | LoadedTensors | None = None,
    ) -> None:
        self.folder, self._parts, self._resume, self._overwrite = folder, training_parts, resume, overwrite
        self._audit, self._received = audit, received
        self._training: WatchedTraining | None = None
        self._scored = False

    def __enter__(self) -> Self:
        if self._training is not None:
            raise UsageError("a recorder records once: call dpspec.record again, with another folder")
        if self._overwrite:
            remove_recording(self.folder)
        options: Any = {"resume": self._resume, "audit": self._audit, "received": self._received}
        self._training = WatchedTraining(self.folder, self._parts, **options)
        self._training.adapter.begin_step()
        return self

    def epsilon(self, delta: float) -> float:
        """The certified epsilon of the recorded steps for one record, at ``delta`` in (0, 1), in zero-out adjacency.

        It holds under the assumptions of ``dpspec check``, which also tests the run. A training may log it or stop at
        a budget. Infinite if the batches are not Poisson samples of one process, a step had no noise, norms are in half
        precision, clipping is adaptive, or the recording continues an earlier part: ``dpspec check`` bounds these runs.
        """
        return self._begun("epsilon").epsilon(delta)

    def affords(self, epsilon: float, delta: float) -> bool:
        """Whether a further step keeps the certified epsilon of the training within a budget; call it before the step.

            for batch in loader:
                if not run.affords(3.0, 1e-5):
                    break

        A check of :meth:`epsilon` after a step ends above the budget: the step has already been made.

        Args:
            epsilon: The budget, finite and above 0.
            delta: Of the budget, in (0, 1).

        Returns:
            Whether the recorded steps and one step with the present noise multiplier and rate cost at most ``epsilon``,
            for one record in zero-out adjacency.

        Raises:
            UsageError: A number is outside its range, or the steps of the training have no bound, as for
                :meth:`epsilon`.
        """
        if not 0.0 < epsilon < math.inf or not 0.0 < delta < 1.0:
            raise UsageError(f"epsilon must be finite and above 0, and delta in (0, 1), got {epsilon!r} and {delta!r}")
        return self._begun("affords").affords(epsilon, delta)

    def cautions(self, delta: float = 1e-5) -> tuple[str, ...]:
        """The names of the rules that have fired until now; rules on counts of the run fire in ``dpspec check``."""
        return self._begun("cautions").cautions(delta)

    def summary(self, delta: float = 1e-5) -> dict[str, float]:
        """Numbers for loggers: ``steps``, ``epsilon`` at ``delta``, and the last ``rate`` and ``noise_multiplier``."""
        training = self._begun("summary")
        epsilon = training.epsilon(delta)
        return {**training.spent.last, "epsilon": epsilon}

    @property
    def steps(self) -> int:
        """The number of recorded steps."""
        return 0 if self._training is None else self._training.steps

    def _begun(self, method: str) -> WatchedTraining:
        if self._training is None:
            raise UsageError(f"run.{method} is for use inside the block, or after it")
        return self._training

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        training = self._training
        assert training is not None
        if kind is not None:
            training.blame_training(kind)
        training.detach()
        training.guarded(lambda: training.end(kind))
        training.writer = None

    def sampled(self, indices: Array | Sequence[int]) -> None:
        """Report the numbers of the records that were drawn for this step; several calls in a step add up.

        For a planted dataset these are the drawn places, with or without omitted canaries.
        """
        self._reporting("sampled").sampled(indices)

    def clipped(self, norms: Array | Sequence[float]) -> None:
        """Report the l2 norms (b,) of the contributions after clipping; several calls in a step add up."""
        self._reporting("clipped").clipped(norms)

    def noised(self, noise: Array | Iterable[Array]) -> None:
        """Report the noise that was added to the sum of clipped gradients, before any division.

        One tensor or array of all coordinates in the order of ``model.parameters()``, or one for each trainable
        parameter.
        """
        self._reporting("noised").noised(noise)

    def summed(self, total: Array | Iterable[Array]) -> None:
        """Report the sum of clipped gradients, before noise and any division, in the form of :meth:`noised`.

        The optimizer's gradients must be the sum and the noise over a divisor, up to rounding.
        """
        self._reporting("summed").summed(total)

    def stepped(self, *, parameters: Iterable[Any] | None = None, gradients: Iterable[Any] | None = None) -> None:
        """Report that the parameters moved, which ends the step.

        Args:
            parameters: The arrays after the step, in the order and shapes of ``model``, if it is a list of arrays.
            gradients: The arrays that the optimizer got, which must be (sum + noise) / divisor. Without them no claim
                is proved.

        Raises:
            UsageError: ``parameters`` is missing or superfluous, or the arrays have other shapes.
        """
        self._reporting("stepped").stepped(parameters, gradients)

    def declare(
        self,
        *,
        noise_multiplier: float | None = None,
        clip_norm: float | None = None,
        rate: float | None = None,
    ) -> None:
        """Change the declared intentions of the loop from now on; as for :func:`record`."""
        declaration = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": None}
        self._reporting("declare").declare(declaration)

    def _reporting(self, method: str) -> Adapter:
        if self._training is None:
            raise UsageError(f"run.{method} was called outside of the recorder's with block")
        return self._training.adapter

    def score(self, model: nn.Module | None = None, loss: Loss | None = None, *, batch_size: int = 256) -> None:
        """Score all canaries of the planted dataset, included and omitted ones, once after the block.

        ``canaries.npz`` in the folder holds inclusion bits and scores, and is not for publication.

        Args:
            model: The trained model, None for canaries of kind ``gradients``. It is put in evaluation mode.
            loss: ``loss(model, batch)`` returns the loss of each record, (b,), with the loader's ``collate_fn``.
                None for canaries of kind ``gradients``, whose score is the inner product of the canary's direction with
                all gradients that the optimizer stepped with.
            batch_size: The number of canaries in a batch.

        Raises:
            UsageError: The dataset is not planted, the block is not over, canaries have been scored before, or
                arguments do not fit.
        """
        planted, training = self._parts.planted, self._training
        if planted is None:
            raise UsageError("nothing was planted: give the loader, or planted=, what dpspec.plant returned")
        if self._scored:
            raise UsageError("canaries are scored once: to score by another rule, train again with other coins")
        if training is None or training.ended is None:
            over = training is not None and training.writer is None
            reason = "the recording came to no end" if over else "the block is not over"
            raise UsageError(f"run.score is for after the block: {reason}")
        if training.gradients is not None and model is None and loss is None:
            values, final = training.gradients.scores(), True
        elif training.gradients is None and model is not None and loss is not None:
            collate = getattr(self._parts.loader, "collate_fn", None) or planted.collate or default_collate
            values, final = scores_of(model, loss, planted.canaries, collate, batch_size), training.is_final(model)
        else:
            raise UsageError("write run.score() for canaries of kind 'gradients', run.score(model, loss) for others")
        content = table(planted.coins, values, planted.source)
        self._scored = True
        training.ended.scored(content, canaries=planted.count, final=final)


def writer_of(recorder: Recorder) -> RunWriter | None:
    """The writer of the folder after the block; None if the recording did not come to its end."""
    return None if recorder._training is None else recorder._training.ended
