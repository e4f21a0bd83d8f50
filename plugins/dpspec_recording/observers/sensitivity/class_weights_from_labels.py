"""Whether a loss weights classes by the label counts of the records.

The mistake: one record changes a count, and with it the gradients of all::

    criterion = nn.CrossEntropyLoss(weight=1.0 / torch.bincount(y))

Weights and priors that a function reads are among the short vectors of replayed steps.
"""

import contextlib
import math
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.text import several
from dpspec_recording.model_hook import suppressed
from dpspec_recording.watching.memory_rows import tensors_of

RULE = Rule(
    name="class-weights-from-labels",
    summary="weights or priors of a loss, or a bias of the model, follow from the label counts of the dataset",
    why="Label counts are exact statistics of the records: one record changes the weights of all gradients.",
    fix="Use public class weights, or counts with noise whose epsilon you add; accept if the counts are public.",
    source="https://github.com/meta-pytorch/opacus/issues/600",
    code="dpspec_recording.observers.sensitivity.class_weights_from_labels:ClassWeightsFromLabels",
)

#: The relative rounding of a vector in single precision.
_ROUNDING = 5e-6


@dataclass(frozen=True, kw_only=True)
class ClassWeightFacts:
    """The loss module, the parameter or the vector whose weights follow from the label counts; "" without."""

    module: str


class ClassWeightsFromLabels(TrainingRule[ClassWeightFacts]):
    kind, early = ClassWeightFacts, True

    def __init__(self) -> None:
        self._hook: Any = None
        self._module = ""
        self._counts: Any = None
        self._replayer: Any = None

    def start(self, setup: RuleSetup) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        from dpspec_recording.shards import local

        self._replayer = setup.replayer
        tensors = tensors_of(setup.loader)
        self._counts = counts = None if tensors is None or len(tensors) < 2 else _counts(tensors[-1])
        if counts is None:
            return
        for name, parameter in _named_parameters(setup.model):
            values = local(parameter.detach())  # of a parameter in shards only the own one, which is seldom all of it
            if values.shape == counts.shape and _is_constant(values.double().cpu() - counts.log(), rounding=1e-6):
                self._module = name
        if setup.compiled:
            return
        weights = _weights(counts)
        pause = contextlib.nullcontext if setup.replayer is None else setup.replayer.pauses.pause

        def observe(module: Any, args: Any) -> None:
            with pause():  # a replayed step must not read the weights that this rule computes
                compare(module)

        def compare(module: Any) -> None:
            if type(module).__module__ != "torch.nn.modules.loss":
                return
            weight, positive = getattr(module, "weight", None), getattr(module, "pos_weight", None)
            if isinstance(weight, torch.Tensor) and weight.shape == counts.shape and bool((weight > 0.0).all()):
                logarithms = weight.detach().double().cpu().log()
                if any(_is_constant(logarithms - candidate.log()) for candidate in weights):
                    self._module = type(module).__name__
            if isinstance(positive, torch.Tensor) and positive.numel() == 1 and len(counts) == 2:
                ratio = float(positive) * float(counts[1] / counts[0])
                self._module = type(module).__name__ if abs(ratio - 1.0) < 1e-4 else self._module

        self._hook = register_module_forward_pre_hook(suppressed(observe))

    def after_step(self, step: RuleStep) -> None:
        if step.number == 2:
            self._remove_hook()

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def stop(self) -> None:
        self._remove_hook()
        replayer, self._replayer = self._replayer, None
        if replayer is None or self._module:
            return
        read = replayer.origins.constants
        label_counts = [self._counts] if self._counts is not None else map(_counts, read.tables.values())
        for counts in label_counts:
            if counts is not None:
                sizes = [len(vector) for vector in read.vectors.values() if follows_from(vector, counts)]
                if sizes:
                    self._module = f"the loss (a tensor of {several(sizes[0], 'number')})"

    def facts(self) -> ClassWeightFacts:
        return ClassWeightFacts(module=self._module[:60])

    @staticmethod
    def caution(facts: ClassWeightFacts, run: RuleRun) -> str:
        if not facts.module:
            return ""
        return f"Weights of {facts.module} follow from the label counts of exactly these records."


def _counts(labels: Any) -> Any:
    """The number of records of each label (classes,); None if labels are not classes, or all are equally frequent."""
    import torch

    if labels.numel() != len(labels) or not len(labels) or labels.is_complex():
        return None
    classes = labels.reshape(-1).cpu()
    if labels.is_floating_point():  # targets of a binary loss
        if not bool(((classes == 0.0) | (classes == 1.0)).all()):
            return None
        classes = classes.long()
    if classes.dtype not in (torch.int64, torch.int32) or int(classes.min()) < 0 or int(classes.max()) > 10_000:
        return None
    counts = torch.bincount(classes).double()
    return None if len(counts) < 2 or bool((counts == counts[0]).all()) or not bool(counts.all()) else counts


def _weights(counts: Any) -> list[Any]:
    """Usual class weights, up to a factor: inverse counts and their roots, shares of others, effective numbers."""
    effective = [1.0 / (1.0 - beta**counts) for beta in (0.9, 0.99, 0.999, 0.9999)]  # Cui et al. 2019
    weights = [1.0 / counts, counts**-0.5, counts.sum() - counts, *effective]
    return [candidate for candidate in weights if not _is_constant(candidate.log())]  # of many records


def follows_from(vector: Any, counts: Any) -> bool:
    """Whether a vector (k,) has the usual class weights or priors of label counts (classes,).

    Priors are logarithms of shares, without a factor. A single number is the ``pos_weight`` of two classes, or its
    logarithm, unless it has three digits at most, as public constants do.
    """
    if _is_constant(counts.log()):
        return False
    if vector.numel() == 1 and len(counts) == 2:
        value, ratio = float(vector), float(counts[0] / counts[1])
        candidates = (ratio, 1.0 / ratio, math.log(ratio), -math.log(ratio))
        is_round = math.isclose(value, float(f"{value:.3g}"), rel_tol=_ROUNDING)
        return not is_round and any(math.isclose(value, candidate, rel_tol=_ROUNDING) for candidate in candidates)
    if vector.shape != counts.shape:
        return False
    if any(_is_constant(vector - sign * counts.log(), rounding=_ROUNDING) for sign in (1.0, -1.0)):
        return True
    if not bool((vector > 0.0).all()):
        return False
    weights = [*_weights(counts), counts, counts**-0.25]  # shares, and margins (Cao et al. 2019)
    return any(
        _is_constant(vector.log() - candidate.log(), rounding=_ROUNDING)
        for candidate in weights
        if not _is_constant(candidate.log())
    )


def _is_constant(values: Any, rounding: float = 1e-4) -> bool:
    """Whether values are equal. Random biases of two classes are so with probability 1e-5 at a rounding of 1e-6."""
    return bool(((values - values.mean()).abs() < rounding).all())


def _named_parameters(model: Any) -> list[Any]:
    return list(model.named_parameters()) if hasattr(model, "named_parameters") else []
