"""One private training of a script, from the call that prepares it to the end of the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import torch

from dpspec.errors import UsageError
from dpspec_recording import recognized
from dpspec_recording.folder.recording import saved_parameters
from dpspec_recording.folder.script_facts import MOST_LISTED, OtherSteps, OtherTraining, ScriptFacts
from dpspec_recording.folder.writer import RunWriter
from dpspec_recording.model_hook import suppressed
from dpspec_recording.parts import Parts, sums_over_processes
from dpspec_recording.received_weights import LoadedTensors
from dpspec_recording.recorder import Recorder, writer_of
from dpspec_recording.scripts.references import identities, reference_to
from dpspec_recording.state_watch import parameters_digest
from dpspec_recording.watching.trained_weights import TrainedWeights


class PreparedTraining:
    """A training that ``make_private`` prepared. It is recorded while it is in progress.

    The recorder begins with the first iteration of the loader or the first gradients of the model, so the weights and
    options that the script sets before are the initial ones. The recorder holds the model, so it ends when the script
    begins another training, and continues in a further part if the first one does.

    Attributes:
        before: The trainings that had begun when this one was prepared.
        folder: None before the beginning.
        recorder: None while it is not in progress.
        steps: The number of recorded steps.
        missed: The number of steps of its optimizer that no recorder saw.
        returned: The number of loads of an earlier step's weights into its model.
        failure: Why it cannot be recorded; empty if it can.
        weights: Of its model, as the script read them, and at the beginning of later trainings; None before it begins.
        is_distributed: Whether its optimizer sums over several processes.
    """

    def __init__(self, engine: Any, prepared: tuple[Any, ...], before: list[PreparedTraining]) -> None:
        """prepared: the objects that ``make_private`` returned."""
        _, module = recognized.hooked(prepared[0])
        optimizer = prepared[1]
        self._held: tuple[Any, ...] | None = (prepared[0], optimizer, prepared[-1], engine)
        self._weak = tuple(map(ref, (*self._held, engine.accountant)))
        self._module = ref(module)
        self.optimizer = ref(optimizer.original_optimizer)
        self.dataset = reference_to(getattr(prepared[-1], "dataset", None))
        self.tensors = identities(module.parameters())
        self.is_distributed = sums_over_processes(optimizer)
        self.before = before
        self.folder: Path | None = None
        self.recorder: Recorder | None = None
        self.steps = self.missed = self.returned = 0
        self.failure = ""
        self._writers: list[tuple[RunWriter, tuple[OtherSteps, ...]]] = []
        self._read: dict[int, None] = {}
        self._hooks: list[Any] = []
        self._others_before: tuple[OtherSteps, ...] = ()
        self.steps_at_end: list[int] = []
        self.weights: TrainedWeights | None = None

    @property
    def has_begun(self) -> bool:
        return self.folder is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it may begin, or go on."""
        return self.recorder is None and not self.failure

    def is_of(self, loader: Any) -> bool:
        """Whether a loader is the one of this training, or another one around its batches, as of a memory manager."""
        private_loader: Any = self._weak[2]()
        if private_loader is None or loader is private_loader:
            return private_loader is not None
        batches = getattr(loader, "batch_sampler", None)
        inner = getattr(batches, "sampler", None) if type(batches).__name__ == "BatchSplittingSampler" else batches
        return inner is not None and inner is getattr(private_loader, "batch_sampler", None)

    def take(self, loader: Any) -> bool:
        """Take a loader in the place of the prepared one, if it draws such batches from the same dataset.

        Trainers build their own loader again after the script prepared one.
        """
        prepared: Any = self._weak[2]()
        if self.has_begun or prepared is None or loader.dataset is not prepared.dataset:
            return False
        if _drawing_of(loader) != _drawing_of(prepared):
            return False
        if self._held is not None:
            self._held = (*self._held[:2], loader, self._held[3])
        self._weak = (*self._weak[:2], ref(loader), *self._weak[3:])
        return True

    def is_concurrent_with(self, peer: PreparedTraining) -> bool:
        """Whether both were prepared before either began, as two networks of one training are."""
        return peer not in self.before and self not in peer.before

    def holds(self, module: Any) -> bool:
        """Whether a module has tensors of its model."""
        return not self.tensors.keys().isdisjoint(identities(module.parameters()))

    def shares_model_with(self, peer: PreparedTraining) -> bool:
        return not self.tensors.keys().isdisjoint(peer.tensors)

    def wait(self, begin: Callable[[], None], begin_inside: Callable[[], None] | None = None) -> None:
        """Call ``begin`` when the model computes gradients, and ``begin_inside`` when the one in its wrapper does."""
        module = self._module()

        def observe(call: Callable[[], None], passing: Any, *_: Any) -> None:
            if passing.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                call()

        if module is None:
            return
        self._hooks.append(module.register_forward_pre_hook(suppressed(partial(observe, begin))))
        inside = recognized.inner_module(module)
        if begin_inside is not None and inside is not module:
            self._hooks.append(inside.register_forward_pre_hook(suppressed(partial(observe, begin_inside))))

    def begin(
        self,
        folder: Path,
        *,
        resume: bool,
        before: tuple[OtherSteps, ...] = (),
        received: LoadedTensors | None = None,
        public: Sequence[Any] = (),
        earlier: Sequence[TrainedWeights] = (),
    ) -> None:
        """Begin the recording, or a further part of it.

        Args:
            folder: Of the recording.
            resume: Whether it has parts, or may get further ones.
            before: Steps of other optimizers since the end of the part before, or since the script began.
            received: Weights that the script loaded, if they come from a server.
            public: The public data of the script.
            earlier: The weights that the script trained before.

        Raises:
            UsageError: The recorder does not support a part.
        """
        self.stop_waiting()
        model, optimizer, loader, engine = self._parts()
        declared = dict.fromkeys(_DECLARED)
        training_parts = Parts(
            model, optimizer, loader, engine, None, declared, public=list(public) or None, earlier=earlier
        )
        recorder = Recorder(folder, training_parts, resume=resume, received=received)
        recorder.__enter__()
        self.folder, self.recorder, self._others_before = folder, recorder, before
        self._held = None  # the recorder holds them
        weights = self.weights = self.weights or TrainedWeights(f"training {folder.name}", model.parameters())
        weights.datasets = [self.dataset]

        def read(*_: Any) -> None:
            self._read.setdefault(recorder.steps)
            weights.note()

        hook = suppressed(read)
        self._hooks.append(recognized.inner_module(model).register_state_dict_pre_hook(hook))  # type: ignore[no-untyped-call]

    def _parts(self) -> tuple[Any, ...]:
        objects = self._held or tuple(reference() for reference in self._weak[:4])
        model, optimizer, loader, engine = objects
        if model is None or optimizer is None or loader is None:
            raise UsageError("its model, optimizer or loader is gone")
        return model, optimizer, loader, engine or self._weak[4]()

    def end(self, error: type[BaseException] | None) -> None:
        """End the recording until the training continues. error: of the script, if it ended by one."""
        self.stop_waiting()
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        recorder.__exit__(error, None, None)
        self.steps += recorder.steps
        if (writer := writer_of(recorder)) is not None:
            self._writers.append((writer, self._others_before))

    def note_load(self) -> None:
        """Note whether the script put weights of an earlier step into the model, other than those that it had last."""
        if self.folder is None or None in [reference() for reference in self._weak[:3]]:
            return
        model, optimizer, loader, engine = self._parts()
        trained = Parts(model, optimizer, loader, engine, None, dict.fromkeys(_DECLARED)).trained_parameters()
        saved, now = saved_parameters(self.folder), parameters_digest(trained)
        self.returned += now in saved[:-1] and now != saved[-1]

    def stop_waiting(self) -> None:
        """Remove the hooks of the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def note(self, *, whole: bool, after: tuple[OtherSteps, ...], peers: tuple[OtherTraining, ...]) -> None:
        """Add the facts of the script to the recording."""
        for number, (writer, before) in enumerate(self._writers, start=1):
            facts = ScriptFacts(
                whole=whole,
                before=before,
                after=after,
                returned=self.returned if number == len(self._writers) else 0,
                missed=self.missed if number == len(self._writers) else 0,
                peers=peers[:MOST_LISTED],
                read=tuple(sorted(self._read)[-MOST_LISTED:]),
            )
            writer.ran_in(facts)


def _drawing_of(loader: Any) -> tuple[Any, ...]:
    """How a loader draws its batches."""
    batches = loader.batch_sampler
    rate = getattr(batches, "sample_rate", None)
    return type(batches), type(loader.sampler), rate, None if rate is not None else loader.batch_size


#: The declarations of a custom loop. Opacus' optimizer and loader have these values.
_DECLARED = ("noise_multiplier", "clip_norm", "rate", "records")
