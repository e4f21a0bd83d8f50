"""Whether features were scaled by constants of exactly these records."""

from collections.abc import Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.recording.rules.memory_rows import tensors_of

RULE = Rule(
    name="standardized-features",
    summary="columns, channels or targets have mean 0 and deviation 1, or another such range, over these records",
    why="Statistics of the records scale each record: a record changes the features of all.",
    fix="Scale by public constants. dpspec.replay tests whether constants of a script depend on a record.",
    code="dpspec.recording.rules.standardized_features:StandardizedFeatures",
)

#: The minimum number of records, and the maximum number of values whose quartiles are computed.
_FEWEST, _MOST_QUARTILES = 20, 2**20

#: By name, the constants that a scaling gives each column of the records from which it computes them.
_SCALINGS = {
    "standardized": "mean 0 and deviation 1",
    "ranged": "minimum 0 and maximum 1",
    "signed": "minimum -1 and maximum 1, or largest absolute value 1",
    "robust": "median 0 and quartile distance 1",
}


class StandardizedFeatures(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {"columns": 0, "channels": 0, "targets": ""}

    def start(self, setup: RuleSetup) -> None:
        tensors = tensors_of(setup.loader)
        if tensors is None or len(tensors[0]) < _FEWEST:
            return
        features, last = tensors[0], tensors[-1]
        if features.is_floating_point() and features.dim() >= 2:
            rows = features.reshape(len(features), -1).double()
            counts = {name: int(scaled.sum()) for name, scaled in _scaled(rows).items()}
            self._facts |= {"columns": rows.shape[1], **counts}
            if features.dim() == 4:
                channels = features.double().transpose(0, 1).flatten(1).T
                self._facts["channels"] = int(_is_standardized(channels).sum())
        if len(tensors) > 1 and last.is_floating_point() and last.numel() == len(last):
            targets = _scaled(last.reshape(-1, 1).double())
            self._facts["targets"] = next((name for name, scaled in targets.items() if bool(scaled)), "")

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        phrases = [
            f"{int(facts[name])} of {int(facts['columns'])} columns have {constants} over exactly these records"
            for name, constants in _SCALINGS.items()
            if facts.get(name)
        ]
        if facts.get("channels") and not phrases:
            phrases.append("channels of the images have mean 0 and deviation 1 over exactly these records")
        if facts.get("targets") in _SCALINGS:
            phrases.append(f"targets have {_SCALINGS[facts['targets']]} over exactly these records")
        text = "; ".join(phrases)
        return f"{text[:1].upper()}{text[1:]}: were the constants of the scaling computed from them?" if text else ""


def _scaled(rows: Any) -> dict[str, Any]:
    """By scaling, for each column of ``rows`` (n, d) whether it has its constants."""
    import torch

    low, high = rows.amin(0), rows.amax(0)
    largest = rows.abs().amax(0)
    unit = (high - 1.0).abs() < 1e-6
    robust = torch.zeros_like(unit)
    if rows.numel() <= _MOST_QUARTILES:
        first, median, third = torch.quantile(rows, torch.tensor([0.25, 0.5, 0.75], dtype=rows.dtype), dim=0)
        robust = (median.abs() < 1e-6) & ((third - first - 1.0).abs() < 1e-4)
    return {
        "standardized": _is_standardized(rows),
        "ranged": (low == 0.0) & unit & ~_on_grid(rows * 255.0),
        "signed": ((largest - 1.0).abs() < 1e-6) & (low < 0.0) & ~_on_grid(rows * 127.5 + 127.5) & ~_on_grid(rows),
        "robust": robust & ~_on_grid(rows),
    }


def _is_standardized(rows: Any) -> Any:
    mean = rows.mean(0)
    squares = ((rows - mean) ** 2).sum(0)
    deviations = (squares / len(rows)).sqrt(), (squares / (len(rows) - 1)).sqrt()
    unit = (deviations[0] - 1.0).abs().minimum((deviations[1] - 1.0).abs())
    return (mean.abs() < 1e-5) & (unit < 1e-4)


def _on_grid(levels: Any) -> Any:
    """Whether all values of a column are integers: flags, and pixels that are divided by a public 255."""
    return ((levels - levels.round()).abs() < 1e-3).all(0)
