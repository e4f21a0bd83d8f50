"""Whether a loss weights classes by the label counts of the records."""

from collections.abc import Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.recording.rules.hooks import suppressed
from dpspec.recording.rules.memory_rows import tensors_of

RULE = Rule(
    name="class-weights-from-labels",
    summary="the weight of a loss module is the inverse of the label counts of the dataset",
    why="Label counts are exact statistics of the records: one record changes the weights of all gradients.",
    fix="Use public class weights, or counts with noise whose epsilon you add; accept if the counts are public.",
    code="dpspec.recording.rules.class_weights_from_labels:ClassWeightsFromLabels",
)


class ClassWeightsFromLabels(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._hook: Any = None
        self._module = ""

    def start(self, setup: RuleSetup) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        tensors = tensors_of(setup.loader)
        labels = None if tensors is None or len(tensors) < 2 else tensors[-1]
        if setup.compiled or labels is None or labels.dtype not in (torch.int64, torch.int32) or labels.dim() != 1:
            return
        if len(labels) == 0 or int(labels.min()) < 0 or int(labels.max()) > 10_000:
            return
        counts = torch.bincount(labels.cpu()).double()
        if len(counts) < 2 or bool((counts == counts[0]).all()):
            return

        def observe(module: Any, args: Any) -> None:
            weight = getattr(module, "weight", None)
            if type(module).__module__ != "torch.nn.modules.loss" or not isinstance(weight, torch.Tensor):
                return
            if weight.shape == counts.shape and bool((weight > 0.0).all()):
                product = weight.detach().double().cpu() * counts
                if bool(((product / product.mean() - 1.0).abs() < 1e-4).all()):
                    self._module = type(module).__name__

        self._hook = register_module_forward_pre_hook(suppressed(observe))

    def after_step(self, step: RuleStep) -> None:
        if step.number == 2:
            self.stop()

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def facts(self) -> Mapping[str, Any]:
        return {"module": self._module[:60]}

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        if not facts["module"]:
            return ""
        return f"The weight of {facts['module']} is proportional to 1 over the label counts of exactly these records."
