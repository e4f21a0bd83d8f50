"""One private training of a script, from the call that prepares it to the end of the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import torch

from dpspec.errors import UsageError
from dpspec_recording import recognized
from dpspec_recording.folder.run_folder import RunWriter
from dpspec_recording.folder.script_facts import MOST_LISTED, OtherSteps, OtherTraining, ScriptFacts
from dpspec_recording.model_hook import suppressed
from dpspec_recording.parts import Parts
from dpspec_recording.recorder import Recorder, writer_of


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
        failure: Why it cannot be recorded; empty if it can.
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
        self.dataset = _reference(getattr(prepared[-1], "dataset", None))
        self.tensors = frozenset(id(p) for p in module.parameters())
        self.is_distributed = recognized.is_distributed(optimizer)
        self.before = before
        self.folder: Path | None = None
        self.recorder: Recorder | None = None
        self.steps = self.missed = 0
        self.failure = ""
        self._writers: list[RunWriter] = []
        self._read: dict[int, None] = {}
        self._hooks: list[Any] = []
        self.others_before: tuple[OtherSteps, ...] = ()
        self.steps_at_end: list[int] = []

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

    def is_concurrent_with(self, peer: PreparedTraining) -> bool:
        """Whether both were prepared before either began, as two networks of one training are."""
        return peer not in self.before and self not in peer.before

    def shares_model_with(self, peer: PreparedTraining) -> bool:
        return bool(self.tensors) and not self.tensors.isdisjoint(peer.tensors)

    def wait(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` when the model computes gradients."""
        module = self._module()

        def observe(passing: Any, *_: Any) -> None:
            if passing.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                begin()

        if module is not None:
            self._hooks.append(module.register_forward_pre_hook(suppressed(observe)))

    def begin(self, folder: Path, *, resume: bool, public: Sequence[Any] = ()) -> None:
        """Begin the recording, or a further part of it.

        Args:
            folder: The folder of the recording.
            resume: Whether it has an earlier part.
            public: The public data of the script.

        Raises:
            UsageError: The recorder does not support a part.
        """
        self.stop_waiting()
        model, optimizer, loader, engine = self._parts()
        training_parts = Parts(
            model, optimizer, loader, engine, None, dict.fromkeys(_DECLARED), public=list(public) or None
        )
        recorder = Recorder(folder, training_parts, resume=resume)
        recorder.__enter__()
        self.folder, self.recorder = folder, recorder
        self._held = None  # the recorder holds them
        hook = suppressed(lambda *_: self._read.setdefault(recorder.steps))
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
            self._writers.append(writer)

    def stop_waiting(self) -> None:
        """Remove the hooks of the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def note(self, *, whole: bool, after: tuple[OtherSteps, ...], peers: tuple[OtherTraining, ...]) -> None:
        """Add the facts of the script to the recording."""
        facts = ScriptFacts(
            whole=whole,
            before=self.others_before,
            after=after,
            missed=self.missed,
            peers=peers[:MOST_LISTED],
            read=tuple(sorted(self._read)[-MOST_LISTED:]),
        )
        for writer in self._writers:
            writer.ran_in(facts)


#: The declarations of a custom loop. Opacus' optimizer and loader have these values.
_DECLARED = ("noise_multiplier", "clip_norm", "rate", "records")


def _reference(value: Any) -> Callable[[], Any]:
    """A weak reference, or None for a value of a type that has none, such as a list."""
    try:
        return ref(value)
    except TypeError:
        return lambda: None
