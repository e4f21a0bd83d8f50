"""Whether records of a dataset in memory are equal."""

from collections.abc import Mapping
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.recording.rules.memory_rows import tensors_of

RULE = Rule(
    name="duplicate-records",
    summary="rows of a dataset in memory are equal",
    why="A person whose record occurs k times changes each sum by k clip norms: epsilon holds for a group of k.",
    fix="Remove the copies, claim for groups (--group-size K), or accept if equal rows are different persons.",
    code="dpspec.recording.rules.duplicate_records:DuplicateRecords",
)


class DuplicateRecords(TrainingRule):
    early = True

    def __init__(self) -> None:
        self._facts: dict[str, Any] = {"rows": 0, "repeated": 0, "most": 0}

    def start(self, setup: RuleSetup) -> None:
        import numpy as np

        tensors = tensors_of(setup.loader)
        if tensors is None:
            return
        columns = [tensor.cpu().reshape(len(tensor), -1).contiguous() for tensor in tensors]
        rows = np.concatenate([np.ascontiguousarray(c.numpy()).view(np.uint8) for c in columns if c.numel()], axis=1)
        whole = rows.view(np.dtype((np.void, rows.shape[1]))).reshape(-1)
        _, counts = np.unique(whole, return_counts=True)
        self._facts = {"rows": len(rows), "repeated": int((counts > 1).sum()), "most": int(counts.max())}

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    @staticmethod
    def caution(facts: Mapping[str, Any], run: RuleRun) -> str:
        most, repeated = int(facts["most"]), int(facts["repeated"])
        if most <= max(1, run.group_size):
            return ""
        occurs = f"each of {repeated} records occurs" if repeated > 1 else "one record occurs"
        times = f"up to {most} times" if repeated > 1 else f"{most} times"
        return f"Of {int(facts['rows'])} rows, {occurs} {times}: --group-size {most} counts all copies."
