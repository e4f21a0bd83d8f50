"""The native backend under another name, writing a line to a file at every training."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dpspec.contract import CAPABILITIES, Backend, TrainingJob, hookimpl

DPSPEC_API = 1


@hookimpl
def dpspec_backends() -> Iterable[Backend]:
    yield Backend(
        kind="counted",
        summary="native, counted",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="support.counted_backend:CountedTrainer",
        constants="dpspec.training.providers:NATIVE_CONSTANTS",
    )


class CountedTrainer:
    """Counts, then trains."""

    def train(self, job: TrainingJob) -> None:
        from dpspec.training.loop.native import NativeTrainer

        with Path(os.environ["COUNTED_LOG"]).open("a") as log:
            log.write(f"{job.seed}\n")
        NativeTrainer().train(job)
