"""Whether the model was trained before the recording began."""

from collections.abc import Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule

#: Writes to a parameter after which an initialization, or a loaded state, does not explain them.
_WRITES = 10

RULE = Rule(
    name="trained-before",
    summary="the model was trained in this process before the block, or its optimizer has state",
    why="Earlier steps on the same records cost privacy that this number does not count, without noise all of it.",
    fix="Record from the first step; or start from a fresh model, or one trained on public records only, and accept.",
    code="dpspec_recording.rules.trained_before:TrainedBefore",
)


class TrainedBefore(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {"writes": 0, "state": False, "gradients": 0, "wrapped": False}

    def start(self, setup: RuleSetup) -> None:
        if setup.resumes or not hasattr(setup.model, "parameters"):
            return
        from dpspec_recording.watching.optimizer_updates import is_fresh

        trained = [p for p in setup.model.parameters() if p.requires_grad]
        self._facts = {
            "writes": min((int(p._version) for p in trained), default=0),
            "state": setup.optimizer is not None and not is_fresh(setup.optimizer),
            "gradients": sum(p.grad is not None for p in trained),
            "wrapped": hasattr(setup.optimizer, "original_optimizer"),
        }

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        texts = []
        if facts["writes"] >= _WRITES:
            texts.append(f"each trained parameter was written at least {int(facts['writes'])} times before the block")
        if facts["state"]:
            texts.append("the optimizer had state before the block")
        if facts["wrapped"]:
            texts.append("the optimizer is wrapped twice by make_private")
        text = "; ".join(texts)
        return f"{text[:1].upper()}{text[1:]}: on which records?" if text else ""
