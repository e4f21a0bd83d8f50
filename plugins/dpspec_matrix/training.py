"""The backend ``matrix``: dpspec's loop with correlated noise and the declared participation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dpspec.contract as dps
from dpspec.sampling import SamplingScheme
from dpspec.training.loop.native import gaussian_noise, parts_of, train_with
from dpspec_matrix.encoders import Encoder, encoder_of
from dpspec_matrix.options import Participation, Schedule

State = Mapping[str, np.ndarray[Any, Any]]


class CorrelatedNoise:
    """Row t of C^-1 Z, computed from earlier rows: of the result, of Z, or of one number per buffer and parameter."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._step = 0
        self._memory: dict[int, Tensor] = {}

    def __call__(self, total: Tensor, deviation: float, source: torch.Generator) -> Tensor:
        white = gaussian_noise(total, deviation, source)
        self._step += 1
        memory = {key: value.to(total) for key, value in self._memory.items()}
        encoder, step = self._encoder, self._step
        if encoder.column is None:
            noise = white
            for child in (step - 2**power for power in range((step & -step).bit_length() - 1)):
                noise = noise - memory.pop(child)
            self._memory = {**memory, step: white}
        elif encoder.inverse is not None:
            lags = range(1, min(len(encoder.inverse), step))
            noise = white + sum(float(encoder.inverse[lag]) * memory[step - lag] for lag in lags)
            self._memory = _latest({**memory, step: white}, len(encoder.inverse) - 1)
        elif encoder.options.kind == "buffers":
            noise = white - sum(memory.values())
            self._memory = {
                i: decay * memory.get(i, torch.zeros_like(total)) + weight * noise
                for i, (weight, decay) in enumerate(zip(encoder.options.weights, encoder.options.decays, strict=True))
            }
        else:
            lags = range(1, min(len(encoder.column), step))
            earlier = sum(float(encoder.column[lag]) * memory[step - lag] for lag in lags)
            noise = (white - earlier) / float(encoder.column[0])
            self._memory = _latest({**memory, step: noise}, len(encoder.column) - 1)
        return noise

    def state(self) -> State:
        rows = {f"row{key}": value.cpu().numpy() for key, value in self._memory.items()}
        return {"step": np.array(self._step), **rows}

    def restore(self, state: State) -> None:
        self._step = int(state.get("step", 0))
        self._memory = {int(name[3:]): torch.tensor(rows) for name, rows in state.items() if name != "step"}


def _latest(rows: dict[int, Tensor], count: int) -> dict[int, Tensor]:
    return {step: rows[step] for step in sorted(rows)[len(rows) - min(count, len(rows)) :]}


class Slots(SamplingScheme):
    """Batches of the records whose slot is the step modulo ``slots``, or of a Poisson sample of the slot.

    Record i is in slot i mod ``slots``, or in a uniform one: of the whole run for balls-in-bins, of each epoch for
    random-allocation.
    """

    def __init__(self, records: int, slots: int, participation: Participation) -> None:
        self.records = records
        self._slots, self._participation = slots, participation
        self._step = 0
        self._slot_of = torch.arange(records) % slots

    @property
    def inclusion(self) -> float:
        return self._participation.rate / self._slots

    def draw(self, generator: torch.Generator) -> Tensor:
        slot, scheme = self._step % self._slots, self._participation.scheme
        if self._step == 0 or slot == 0:
            every_epoch = scheme == "random-allocation"
            if every_epoch or (scheme == "balls-in-bins" and self._step == 0):
                self._slot_of = torch.randint(self._slots, (self.records,), generator=generator)
        self._step += 1
        batch = (self._slot_of == slot).nonzero().squeeze(1)
        if self._participation.rate < 1.0:
            batch = batch[torch.rand(len(batch), generator=generator, dtype=torch.float64) < self._participation.rate]
        return batch

    def state(self) -> State:
        return {"step": np.array(self._step), "slots": self._slot_of.numpy()}

    def restore(self, state: State) -> None:
        self._step = int(state.get("step", 0))
        if "slots" in state:
            self._slot_of = torch.tensor(state["slots"])


class Correlated:
    """Trains by DP-FTRL as declared."""

    def train(self, job: dps.TrainingJob) -> None:
        (options,) = job.phases
        schedule = Schedule.of(options)
        trainer_parts = parts_of(job)
        (phase,) = trainer_parts.schedule.phases
        records = len(job.x) + (job.canaries.count if job.canaries else 0)
        phase = replace(phase, sampler=Slots(records, schedule.slots, schedule.participation))
        noise = self.noise(encoder_of(schedule.encoder, schedule.steps))
        train_with(job, replace(trainer_parts, schedule=replace(trainer_parts.schedule, phases=(phase,)), noise=noise))

    def noise(self, encoder: Encoder) -> CorrelatedNoise:
        return CorrelatedNoise(encoder)


class Independent(Correlated):
    """A control: noise of the declared scale that is independent from step to step."""

    def noise(self, encoder: Encoder) -> CorrelatedNoise:
        return CorrelatedNoise(replace(encoder, column=np.ones(1), inverse=None))
