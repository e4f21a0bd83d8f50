"""The native backend under another name: it runs out of memory while a certain file is there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dpspec.contract import CAPABILITIES, Backend, TrainingJob, hookimpl

DPSPEC_API = 1


@hookimpl
def dpspec_backends() -> Iterable[Backend]:
    yield Backend(
        kind="starved",
        summary="native, where there may be no memory",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="support.faulty_trainer:StarvedTrainer",
        constants="dpspec.training.providers:NATIVE_CONSTANTS",
    )


class StarvedTrainer:
    """Raises what CUDA raises, once it has trained as often as the file ``$STARVED`` says."""

    trained = 0

    def train(self, job: TrainingJob) -> None:
        import torch

        from dpspec.training.loop.native import NativeTrainer

        place = Path(os.environ.get("STARVED", "no such file"))
        if place.is_file() and StarvedTrainer.trained >= int(place.read_text()):
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of"
            )
        StarvedTrainer.trained += 1
        NativeTrainer().train(job)
