"""Whether features were scaled by constants of exactly these records."""

from collections.abc import Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.recording.rules.memory_rows import tensors_of

RULE = Rule(
    name="standardized-features",
    summary="columns have mean 0 and deviation 1, or minimum 0 and maximum 1, over exactly these records",
    why="Mean and deviation, or the range, of the records scale each record: a record changes the features of all.",
    fix="Scale by public constants. dpspec.replay tests whether constants of a script depend on a record.",
    code="dpspec.recording.rules.standardized_features:StandardizedFeatures",
)

#: The minimum number of records.
_FEWEST = 20


class StandardizedFeatures(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {"columns": 0, "standardized": 0, "ranged": 0}

    def start(self, setup: RuleSetup) -> None:
        tensors = tensors_of(setup.loader)
        if tensors is None or not tensors[0].is_floating_point() or tensors[0].dim() < 2:
            return
        rows = tensors[0].reshape(len(tensors[0]), -1).double()
        if len(rows) < _FEWEST:
            return
        mean, low, high = rows.mean(0), rows.amin(0), rows.amax(0)
        squares = ((rows - mean) ** 2).sum(0)
        unit = ((squares / len(rows)).sqrt() - 1.0).abs().minimum(((squares / (len(rows) - 1)).sqrt() - 1.0).abs())
        levels = rows * 255.0
        quantized = ((levels - levels.round()).abs() < 1e-3).all(0)  # flags, and pixels divided by a public 255
        ranged = (low == 0.0) & ((high - 1.0).abs() < 1e-6) & ~quantized
        self._facts = {
            "columns": rows.shape[1],
            "standardized": int(((mean.abs() < 1e-5) & (unit < 1e-4)).sum()),
            "ranged": int(ranged.sum()),
        }

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        phrases = [
            f"{int(facts[key])} of {int(facts['columns'])} columns have {how} over exactly these records"
            for key, how in (("standardized", "mean 0 and deviation 1"), ("ranged", "minimum 0 and maximum 1"))
            if facts[key]
        ]
        text = "; ".join(phrases)
        return f"{text}: were the constants of the scaling computed from them?" if text else ""
