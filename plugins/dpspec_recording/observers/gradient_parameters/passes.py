"""The parameters at which gradients are computed.

The mistake: the parameters move before the forward pass and back, so that the gradients are of another model than the
released one, as in sharpness-aware minimization::

    move(model, epsilon * gradient)      # without noise
    criterion(model(x), y).backward()
    move(model, -epsilon * gradient)
    optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.observers.observer import Observer, Training, emits
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from torch import nn

    from dpspec_recording.observers.judged_run import JudgedRun

_SUM = join_by(sum)


@dataclass(frozen=True, kw_only=True)
class PassFacts:
    """Forward passes in training mode. moved: at other parameters than the last step left; steps, unseen: all steps,
    and those without a pass; compared: passes whose values were compared."""

    passes: Count = field(metadata=_SUM)
    moved: Count = field(metadata=_SUM)
    steps: Count = field(metadata=_SUM)
    unseen: Count = field(metadata=_SUM)
    compared: Count = field(metadata=_SUM)


OTHER_PARAMETERS = Fault(
    name="other-parameters",
    condition="gradient-parameters",
    title="gradients computed at other parameters than the last step left",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/313",
    advice=(
        "Do not move the parameters between a step and the next forward pass: by hand, by a line search, by an "
        "average, or forth and back as SAM does."
    ),
)


class Passes(Observer[PassFacts]):
    """Compares the parameters in the passes of audited steps with those that the last step left.

    A forward pass is observed at the model, and a backward pass at the first noisy parameter: a script may compute
    gradients without the module, as ``torch.func`` does.
    """

    name, kind = "passes", PassFacts | None

    def __init__(self) -> None:
        self._training: Training | None = None
        self._passes = self._compared = self._steps = self._unseen = 0
        self._kinds: set[str] = set()

    def start(self, training: Training) -> None:
        """Attach hooks to the model and to a parameter."""
        if training.optimizer is None:
            return
        import torch
        from torch import nn

        from dpspec_recording.fingerprints import Tally
        from dpspec_recording.model_hook import ModelHook

        self._training, self._other = training, Tally()
        model, compiled = training.script_parts.model, training.script_parts.compiled

        def forward(module: nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling():
                return
            if not module.training:
                training.audits.include()  # the step after an evaluation
            elif torch.is_grad_enabled():
                self.observe("forward")

        inner = getattr(model, "_module", None)
        # hooks of the compiled wrapper run outside of compiled code
        for module in (inner if isinstance(inner, nn.Module) else model, compiled):
            if module is not None:
                training.undo.callback(module.register_forward_pre_hook(ModelHook(forward)).remove)
        if noisy := training.script_parts.noisy_parameters():
            first: Any = noisy[0]
            training.undo.callback(first.register_hook(lambda _: self.observe("backward")).remove)
        training.observe_backward = lambda: self.observe("backward")

    def observe(self, kind: str) -> None:
        """A pass computes gradients now. kind: ``forward`` or ``backward``."""
        assert self._training is not None
        self._passes += 1
        self._kinds.add(kind)
        if self._training.audits.audited:
            self._training.guarded(self._compare)

    def _compare(self) -> None:
        from torch import _C

        assert self._training is not None
        self._compared += 1
        if _C._functorch.peek_interpreter_stack() is None:
            self._other.add(self._training.parameters.moved())
        else:
            with _C._DisableFuncTorch():  # transforms of torch.func hide the memory of all tensors
                self._other.add(self._training.parameters.moved())

    def after_update(self) -> None:
        """Count the update, and whether a forward pass came before it."""
        self._steps += 1
        self._unseen += "forward" not in self._kinds
        self._kinds.clear()

    def facts(self) -> PassFacts | None:
        """None without an optimizer."""
        if self._training is None:
            return None
        # rows of another rank's parameters, gathered for a pass, are other parameters too
        rank = self._training.rank
        moved = int(self._other) + (0 if rank is None else int(rank.other))
        return PassFacts(
            passes=self._passes, moved=moved, steps=self._steps, unseen=self._unseen, compared=self._compared
        )

    @staticmethod
    def judge(facts: PassFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """No pass may have moved parameters, and each step of Opacus' optimizer needs a pass."""
        if run.has_arrays:
            text = "the loop computes each gradient at the parameters that it reported last"
            yield stated("gradient-parameters", status="declared", text=text)
        if facts is None or run.audits is None:
            return
        if facts.passes:
            note = f"{facts.passes} passes, at {facts.steps - facts.unseen} of {facts.steps} steps"
            whole = facts.compared == facts.passes
            note = note if whole else f"values at {facts.compared} of {note}"
            yield OTHER_PARAMETERS.none_found(facts.moved, note, run.audits.limit, whole=whole)
        if emits(run.header, "before_sum") and facts.unseen:
            text = (
                f"no forward pass in training mode was observed at {facts.unseen} of {facts.steps} steps: call the "
                "model that dpspec.record got, and compile it by torch.compile, not in place"
            )
            yield doubted("gradient-parameters", text=text)
