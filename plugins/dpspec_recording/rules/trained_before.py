"""Whether the model was trained before the recording began.

The mistake: the private training continues one without noise, which no epsilon covers::

    train(model, SGD(model.parameters(), lr=0.1), loader)
    model, optimizer, loader = engine.make_private(...)
"""

from dataclasses import dataclass

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count

#: Writes to a parameter after which an initialization, or a loaded state, does not explain them.
_WRITES = 10

RULE = Rule(
    name="trained-before",
    summary="the model was trained in this process before the block, or its optimizer has state",
    why="Earlier steps on the same records cost privacy that this number does not count, without noise all of it.",
    fix="Record from the first step; or start from a fresh model, or one trained on public records only, and accept.",
    code="dpspec_recording.rules.trained_before:TrainedBefore",
)


@dataclass(frozen=True, kw_only=True)
class EarlierTraining:
    """Traces of a training before the block.

    Attributes:
        writes: The smallest number of writes to a trained parameter.
        has_state: Whether the optimizer has state.
        is_wrapped: Whether ``make_private`` wrapped the optimizer twice.
    """

    writes: Count = 0
    has_state: bool = False
    is_wrapped: bool = False


class TrainedBefore(TrainingRule[EarlierTraining]):
    kind, early = EarlierTraining, True

    def __init__(self) -> None:
        self._facts = EarlierTraining()

    def start(self, setup: RuleSetup) -> None:
        if setup.resumes or not hasattr(setup.model, "parameters"):
            return
        from dpspec_recording.watching.optimizer_updates import is_fresh

        trained = [p for p in setup.model.parameters() if p.requires_grad]
        self._facts = EarlierTraining(
            writes=min((int(p._version) for p in trained), default=0),
            has_state=setup.optimizer is not None and not is_fresh(setup.optimizer),
            is_wrapped=hasattr(setup.optimizer, "original_optimizer"),
        )

    def facts(self) -> EarlierTraining:
        return self._facts

    @staticmethod
    def caution(facts: EarlierTraining, run: RuleRun) -> str:
        texts = []
        if facts.writes >= _WRITES:
            texts.append(f"each trained parameter was written at least {facts.writes} times before the block")
        if facts.has_state:
            texts.append("the optimizer had state before the block")
        if facts.is_wrapped:
            texts.append("the optimizer is wrapped twice by make_private")
        text = "; ".join(texts)
        return f"{text[:1].upper()}{text[1:]}: on which records?" if text else ""
