"""Small audits of reconstruction for tests: specs, contexts, trials and observations."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dpspec.contract import FrozenMap, Spec, TrainingJob, Trial
from dpspec.engine.judging.judge import Judged, judge
from dpspec.engine.preparing.context import RunContext
from dpspec.engine.preparing.prepare import prepare
from dpspec.registry.loader import load_catalog
from dpspec.training.loop import native
from dpspec_rero import ReroAudit
from support import specs
from support.audits import unjudged

TEXT = """\
dpspec: 1
name: small
mechanism:
  kind: rero
  noise_multiplier: 0.8
  clip_norm: 0.5
  sampling: {scheme: poisson, rate: 0.3}
  steps: 12
  baselines: []
data: {kind: synthetic, records: 80, features: 12, classes: 4, seed: 2}
model: {kind: linear}
training: {learning_rate: 0.2}
threat_model: {prior: {candidates: 8}}
claims:
  - {id: c, kind: rero, kappa: 0.125, gamma: 0.9}
audit: {method: many-run, runs: 64, seed: 11}
"""


def spec_of(tmp_path: Path, *overrides: str) -> Spec:
    return specs.spec_of(tmp_path, TEXT, *overrides)


def context_of(spec: Spec) -> tuple[RunContext, FrozenMap]:
    prepared = prepare(spec, load_catalog())
    inputs = prepared.trial_inputs()
    return RunContext(prepared, load_catalog(), inputs, device="cpu"), inputs


def trials_of(spec: Spec, count: int, trainer: object | None = None) -> list[Trial]:
    context, inputs = context_of(spec)
    if trainer is not None:
        context.__dict__["trainer"] = trainer
    return list(ReroAudit().trials(inputs, context, range(count)))


#: Laplace noise, as a scale.
LAPLACE = (
    "mechanism.noise=laplace",
    "mechanism.noise_multiplier=null",
    "mechanism.clip_norm=null",
    "mechanism.scale=0.3",
    "mechanism.sensitivity={l1: 0.5}",
)

#: The same noise as that of ``TEXT``, declared as a standard deviation.
SCALED = (
    "mechanism.noise_multiplier=null",
    "mechanism.clip_norm=null",
    "mechanism.scale=0.4",
    "mechanism.sensitivity={l2: 0.5}",
)


class Alone:
    """The native loop without joint training of several runs."""

    def train(self, job: TrainingJob) -> None:
        native.train_with(job, native.parts_of(job))


def quiet(job: TrainingJob) -> TrainingJob:
    """The same job without its noise."""
    return replace(job, phases=[FrozenMap({**phase, "noise_multiplier": 0.0}) for phase in job.phases])


def clipped_gradient(
    model: torch.nn.Module, state: torch.Tensor, x: np.ndarray, y: int, clip: float, ord: int = 2
) -> torch.Tensor:
    """One record's gradient by autograd, scaled down to an l1 or l2 norm."""
    torch.nn.utils.vector_to_parameters(state.clone(), model.parameters())
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)[None]), torch.tensor([y]))
    loss.backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).double()
    return gradient * min(1.0, clip / float(gradient.norm(ord)))


def judged(spec: Spec, trials: Sequence[Trial]) -> Judged:
    """The verdicts on a spec's claims from its bounds and these trials."""
    context, _ = context_of(spec)
    audit = ReroAudit()
    outcomes = [*audit.bound(spec, context), *audit.conclude(spec, trials)]
    return judge([unjudged(spec, *outcomes)])[0]
