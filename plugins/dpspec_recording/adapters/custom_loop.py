"""A training whose script clips and adds noise itself, and reports each step to the recorder.

Reports are kept until ``run.stepped()`` ends the step. The optimizer of the loop, if there is one, shows its updates.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpspec.errors import UsageError
from dpspec_recording.adapters.adapter import Adapter
from dpspec_recording.folder.events import UNSEEN, Header
from dpspec_recording.model_hook import ModelHook
from dpspec_recording.observers.observer import Events, Training
from dpspec_recording.parts import Parts, checked_declaration
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.step_replay.calls import Pauses
from dpspec_recording.step_replay.custom_loop import ReplayedLoop
from dpspec_recording.watching.arrays import ReportedUpdates, tensor_of, tensors_of
from dpspec_recording.watching.step_hooks import attach_step_hooks


class CustomLoop(Adapter):
    """The adapter of a custom loop.

    Attributes:
        step: The step that the loop reports.
        declared: The intentions of the loop from now on.
    """

    def __init__(self, training_parts: Parts, header: Header, pauses: Pauses) -> None:
        self._parts, self._header, self._pauses = training_parts, header, pauses
        self._sizes = [size for _, size in header.layers]
        self.step, self.declared = PendingStep(), training_parts.declared
        self._given: dict[str, Tensor] = {}
        self._training: Training | None = None
        self._replays: ReplayedLoop | None = None

    def attach(self, training: Training, events: Events) -> None:
        """Observe the optimizer until ``training.undo`` ends it, and trace some steps."""
        model = self._parts.model
        self._training, self._events = training, events
        if training.optimizer is not None:
            before = partial(training.guarded, self._before_update)
            after = partial(training.guarded, self._after_update)
            attach_step_hooks(training.optimizer, before, after, training.undo)
        if not self._parts.replay_obstacle:
            tensors = [*model.parameters(), *model.buffers()]
            self._replays = training.replayer = ReplayedLoop(tensors, training.optimizer, training.audits, self._pauses)
            training.undo.callback(self._replays.end)
            hook = register_optimizer_step_pre_hook(ModelHook(self._before_any_step))
            training.undo.callback(hook.remove)
            training.explain = self._replays.explain_rows

    def options(self) -> dict[str, Any]:
        """The options of the private sum now."""
        declared = {name: option for name, option in self.declared.items() if name != "records"}
        return {**declared, **self._parts.loader_options()}

    def present(self) -> tuple[float | None, float | None]:
        """The noise multiplier and the rate of a step that would come now."""
        return self.declared["noise_multiplier"], self.declared["rate"]

    @contextlib.contextmanager
    def unobserved(self) -> Iterator[None]:
        """A context for calls of the recorder's methods, which belong to no step."""
        self._pauses.depth += 1
        try:
            yield
        finally:
            self._pauses.depth -= 1

    def begin_step(self) -> None:
        """A step of the loop begins."""
        if self._replays is not None and self._training is not None:
            self._replays.end()
            if self._training.is_recording():
                self._replays.begin()

    def sampled(self, indices: Any) -> None:
        """The loop reports the numbers of drawn records."""
        with self.unobserved():
            if isinstance(indices, Tensor):
                self.step.indices.append(indices)
                indices = indices.detach().cpu()
            drawn = np.asarray(indices if hasattr(indices, "__array__") else list(indices))
            drawn = drawn.reshape(-1).astype(np.int64)
            if len(drawn) and drawn.min() < 0:
                raise UsageError(f"sampled got the number {drawn.min()}: omit places that only fill a batch")
            planted = self._parts.planted
            present = drawn if planted is None else np.asarray(planted.present(drawn), dtype=np.int64)
            self.step.members.append(present)

    def clipped(self, norms: Any) -> None:
        """The loop reports norms after clipping."""
        with self.unobserved():
            clipped_norms = _norms(norms)
            self.step.norms.append(clipped_norms)
            self.step.add_rows(clipped_norms.numel())

    def noised(self, noise: Any) -> None:
        """The loop reports its noise."""
        _require_once("noised", self.step.noised)
        with self.unobserved():
            self._keep("noise", tensors_of(noise))
        self.step.noised = True

    def summed(self, total: Any) -> None:
        """The loop reports its sum."""
        _require_once("summed", self.step.summed)
        with self.unobserved():
            self._keep("the sum", tensors_of(total))
        self.step.summed = True

    def stepped(self, parameters: Iterable[Any] | None, gradients: Iterable[Any] | None) -> None:
        """The loop reports that the parameters moved."""
        with self.unobserved():
            self._move(parameters, gradients)
        if self._training is not None:
            self._training.guarded(self._end_step)
        self.begin_step()

    def declare(self, declaration: Mapping[str, Any]) -> None:
        """The loop changes intentions; None leaves one."""
        self.declared |= {key: value for key, value in checked_declaration(declaration).items() if value is not None}

    def _keep(self, quantity: str, reported: Tensor | Iterable[Tensor]) -> None:
        """Keep the noise or the sum."""
        tensors = [reported] if isinstance(reported, Tensor) else list(reported)
        if quantity == "the sum" and self._replays is not None:
            clip_norm, pending = self.declared["clip_norm"], self.step
            records = (
                pending.rows if pending.rows != UNSEEN else sum(map(len, pending.members)) if pending.members else -1
            )
            self._replays.summed(
                tensors,
                pending.indices or [torch.from_numpy(member) for member in pending.members],
                records,
                math.nan if clip_norm is None else clip_norm,
                dataset_records=self._header.records,
            )
        elif self._replays is not None:
            self._replays.note(quantity, tensors)
            self.step.noise_generators += self._replays.generators_of(tensors)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
        if flat.is_complex():
            raise UsageError(f"{quantity} must have real numbers")
        if len(flat) != sum(self._sizes):
            layer_sizes = [
                (name, size, tensor.numel()) for (name, size), tensor in zip(self._header.layers, tensors, strict=False)
            ]
            first = next((sizes for sizes in layer_sizes if sizes[1] != sizes[2]), None) if len(tensors) > 1 else None
            where = f": {first[0]} has {first[1]}, and {first[2]} were given for it" if first else ""
            raise UsageError(
                f"{quantity} must have {sum(self._sizes)} numbers, one for each parameter, got {len(flat)}{where}"
            )
        self._given[quantity] = flat

    def _move(self, parameters: Iterable[Any] | None, gradients: Iterable[Any] | None) -> None:
        """Move the copies of a model's arrays to those that the loop reports, as a step of its optimizer."""
        optimizer = self._parts.optimizer
        if self._training is None or not self._training.is_recording():  # the training continues without it
            self.step = PendingStep()
        if isinstance(optimizer, ReportedUpdates) is (parameters is None):
            raise UsageError(
                "stepped needs parameters=, the arrays after the step, if dpspec.record got arrays for model, and "
                "takes none otherwise"
            )
        if isinstance(optimizer, ReportedUpdates) and parameters is not None:
            optimizer.report(parameters, gradients)
            optimizer.step()

    def _end_step(self) -> None:
        """The loop has reported a step."""
        training = self._training
        assert training is not None
        training.step = step = self.step
        self.step = PendingStep()
        if self._replays is not None:
            step.batch_generators += self._replays.generators_of(step.indices)
        step.omit_padding()
        step.silent = not step.noised
        for name in ("noise_multiplier", "clip_norm", "rate"):
            if self.declared[name] is not None:
                setattr(step, name, float(self.declared[name]))
        step.deviation = step.noise_multiplier * step.clip_norm
        training.reported, self._given = self._given, {}
        noise, total = training.reported.get("noise"), training.reported.get("the sum")
        if noise is not None:
            layers = (() if row is None else torch.split(row[None], self._sizes, dim=1) for row in (noise, total))
            measured = training.sketch.measure(*layers)
            step.sketch, step.sum_norm = measured.sketches[0], None if total is None else measured.lengths[0]
            self._events.emit("noise_measured", measured, [step.deviation])
        self._events.emit("after_report")
        if step.members:
            step.drawn, step.batches = np.concatenate(step.members), 1
        elif training.samples is not None:
            step.drawn, step.batches = training.samples.take(None if step.rows == UNSEEN else step.rows)
        if training.optimizer is None:
            step.updates = 1
        else:
            step.moved_outside(training.parameters.moved())
        step.noise = noise
        training.write(step)

    def end(self) -> None:
        """The block is over: a step with reports that was not ended is one."""
        if self.step.updates or self.step.members or self.step.norms or self.step.noised:
            self._end_step()

    def _before_any_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        assert self._training is not None
        if optimizer is not self._training.optimizer and self._replays is not None:
            self._training.guarded(partial(self._replays.before_other_step, optimizer))

    def _before_update(self) -> None:
        assert self._training is not None
        if self._replays is not None:
            self._replays.update_begins([p.grad for p in self._parts.noisy_parameters() if p.grad is not None])
        self.step.moved_outside(self._training.begin_update())

    def _after_update(self) -> None:
        assert self._training is not None
        if self._replays is not None:
            self._replays.update_ends()
        self._events.emit("after_update")
        self.step.updates += 1
        self._training.parameters.advance()


def _norms(norms: Any) -> Tensor:
    """Reported norms as a flat tensor in double precision."""
    tensor = tensor_of(norms).detach() if hasattr(norms, "__array__") else torch.tensor(list(norms))
    return tensor.reshape(-1).double()


def _require_once(method: str, again: bool) -> None:
    if again:
        raise UsageError(
            f"{method} was called twice in one step: call it once, and run.stepped() at the end of each step"
        )
