"""The native backend under another name: slow, saved every ten steps, and writing a line to a file at every step."""

from __future__ import annotations

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
        summary="native, step by step",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="support.stepwise_backend:StepwiseTrainer",
        constants="dpspec.training.providers:NATIVE_CONSTANTS",
    )


class Steps(Observer):
    """Tells of every step that is computed, and takes its time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def released(self, step: int, state: Any) -> None:
        with Path(os.environ["STEPWISE_LOG"]).open("a") as log:
            log.write(f"{self._seed} {step}\n")
        time.sleep(0.005)

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """It remembers nothing."""


class StepwiseTrainer:
    """Trains, and is saved more often than anybody needs."""

    def train(self, job: TrainingJob) -> None:
        from dpspec.training.loop.native import NativeTrainer

        assert job.resumable is not None
        where = replace(job.resumable, steps=10)
        NativeTrainer().train(replace(job, observers=(*job.observers, Steps(job.seed)), resumable=where))
