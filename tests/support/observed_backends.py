"""The native backend, which logs its steps."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpspec.contract import CAPABILITIES, Backend, Observer, TrainingJob, hookimpl

DPSPEC_API = 1


@hookimpl
def dpspec_backends() -> Iterable[Backend]:
    yield Backend(
        kind="stepwise",
        summary="native, stepwise",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="support.observed_backends:StepwiseTrainer",
        constants="dpspec.training.providers:NATIVE_CONSTANTS",
    )


class Steps(Observer):
    """Writes a line to ``$STEPWISE_LOG`` at each step, with a delay."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def released(self, step: int, state: Any) -> None:
        with Path(os.environ["STEPWISE_LOG"]).open("a") as log:
            log.write(f"{self._seed} {step}\n")
        time.sleep(0.005)

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Ignore the empty state."""


class StepwiseTrainer:
    """Trains with a checkpoint every ten steps."""

    def train(self, job: TrainingJob) -> None:
        from dpspec.training.loop.native import NativeTrainer

        assert job.resumable is not None
        where = replace(job.resumable, steps=10)
        NativeTrainer().train(replace(job, observers=(*job.observers, Steps(job.seed)), resumable=where))
