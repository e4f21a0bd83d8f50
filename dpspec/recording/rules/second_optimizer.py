"""Whether another optimizer steps while the training is recorded."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.recording.model_hook import suppressed

#: The number of optimizers that the rule observes.
_MOST_OPTIMIZERS = 20

RULE = Rule(
    name="second-optimizer",
    summary="another optimizer stepped in the block, on tensors of the model or outside it",
    why="Its gradients were neither clipped nor noised: if they come from the records, its tensors reveal them.",
    fix="Train all tensors with the private optimizer, or train the others on public records in a separate script.",
    code="dpspec.recording.rules.second_optimizer:SecondOptimizer",
)


#: The words of a caution for optimizers that change the recorded model.
OF_MODEL = "tensors of the model"


class SecondOptimizer(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._hook: Any = None
        self._steps: dict[int, list[Any]] = {}

    def start(self, setup: RuleSetup) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        expected = {id(setup.optimizer), id(setup.private_optimizer)}
        of_model = {id(p) for p in setup.model.parameters()} if hasattr(setup.model, "parameters") else set()

        def observe(optimizer: Any, args: Any, kwargs: Any) -> None:
            if id(optimizer) in expected or hasattr(optimizer, "original_optimizer"):
                return
            if id(optimizer) not in self._steps and len(self._steps) < _MOST_OPTIMIZERS:
                tensors = [id(p) for group in optimizer.param_groups for p in group["params"]]
                inside = sum(number in of_model for number in tensors)
                # the optimizer itself is kept, so that its id stays unique
                self._steps[id(optimizer)] = [optimizer, inside, len(tensors) - inside, 0]
            if id(optimizer) in self._steps:
                self._steps[id(optimizer)][3] += 1

        self._hook = register_optimizer_step_post_hook(suppressed(observe))

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def facts(self) -> Mapping[str, Any]:
        return {"others": [[type(optimizer).__name__[:60], *counts] for optimizer, *counts in self._steps.values()]}

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        texts = []
        for (name, inside, outside, steps), optimizers in Counter(map(tuple, facts["others"])).items():
            if run.own_loop and not inside and optimizers >= _MOST_OPTIMIZERS:
                continue  # of clients, whose clipped changes are the contributions of a federated training
            targets = [f"{int(inside)} {OF_MODEL}"] if inside else []
            targets += [f"{int(outside)} tensors outside the model"] if outside else []
            stepped = f"{int(steps)} time{'' if steps == 1 else 's'}{'' if optimizers == 1 else ' each'}"
            number = f"at least {optimizers}" if optimizers >= _MOST_OPTIMIZERS else str(optimizers)
            who = f"another optimizer ({name})" if optimizers == 1 else f"{number} other optimizers ({name})"
            texts.append(f"{who} stepped {stepped} on {' and '.join(targets) or 'nothing'}")
        text = "; ".join(texts[:3])
        return f"{text[:1].upper()}{text[1:]}." if text else ""
