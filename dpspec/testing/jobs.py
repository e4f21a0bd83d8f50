"""Small training jobs for backends: twenty records, a linear model, one planted canary, and an observer that logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpspec.contract import FrozenMap, Json, Observer, TrainingJob

if TYPE_CHECKING:
    import torch

RECORDS = 20
FEATURES = 5
CLASSES = 3


def small_job(
    *,
    options: FrozenMap,
    steps: int,
    noise: float = 1.0,
    clip_norm: float = 1.0,
    sampling: Mapping[str, Json] | None = None,
    seed: int = 1,
    **parts: Any,
) -> TrainingJob:
    """One phase on seeded data; ``parts`` are further fields of :class:`~dpspec.contract.TrainingJob`."""
    import numpy as np
    import torch

    source = np.random.default_rng(5)
    y = np.arange(RECORDS, dtype=np.int64) % CLASSES
    centres = source.normal(size=(CLASSES, FEATURES)) * 2
    x = (centres[y] + source.normal(size=(RECORDS, FEATURES))).astype(np.float32)
    model = torch.nn.Linear(FEATURES, CLASSES)
    weights = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=weights) * 0.1)
    sampling = sampling or {"scheme": "poisson", "rate": 0.5}
    phase = {"steps": steps, "noise_multiplier": noise, "clip_norm": clip_norm, "sampling": sampling}
    return TrainingJob(
        x=x,
        y=y,
        model=model,
        phases=(FrozenMap(phase),),
        options=options,
        expected_batch_size=RECORDS / 2,
        device="cpu",
        seed=seed,
        **parts,
    )


def loss(job: TrainingJob) -> float:
    """The mean cross entropy of the job's model on its own records."""
    import torch

    with torch.no_grad():
        outputs = job.model(torch.tensor(job.x))
        return float(torch.nn.functional.cross_entropy(outputs, torch.tensor(job.y)))


def parameters(model: torch.nn.Module) -> torch.Tensor:
    """A copy of all trainable parameters as one vector (P,), in ``parameters()`` order."""
    import torch

    return torch.cat([p.detach().clone().flatten() for p in model.parameters() if p.requires_grad])


class Canary:
    """One planted record whose gradient is 1000 along one coordinate, whatever the model."""

    count = 1

    def __init__(self, coordinate: int, size: int) -> None:
        self._coordinate = coordinate
        self._size = size

    def gradients(self, indices: torch.Tensor) -> torch.Tensor:
        """Shape (b, parameters)."""
        import torch

        rows = torch.zeros(len(indices), self._size, device=indices.device)
        rows[:, self._coordinate] = 1000.0
        return rows


class Log(Observer):
    """Keeps a copy of everything that it is shown, as (method, step, tensor)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, torch.Tensor]] = []

    def released(self, step: int, state: torch.Tensor) -> None:
        """Keep the state."""
        self._keep("released", step, state)

    def sampled(self, step: int, indices: torch.Tensor) -> None:
        """Keep the indices."""
        self._keep("sampled", step, indices)

    def noised(self, step: int, noise: torch.Tensor) -> None:
        """Keep the noise."""
        self._keep("noised", step, noise)

    def clipped(self, step: int, norms: torch.Tensor) -> None:
        """Keep the norms."""
        self._keep("clipped", step, norms)

    def all(self, method: str) -> list[torch.Tensor]:
        """Everything that one method was shown, in order."""
        return [value for name, _, value in self.calls if name == method]

    def at(self, method: str, step: int) -> torch.Tensor:
        """What one method was shown at a step; an assertion fails where that is nothing."""
        shown = [value for name, at, value in self.calls if name == method and at == step]
        if not shown:
            raise AssertionError(f"{method} was not called at step {step}")
        return shown[0]

    def _keep(self, method: str, step: int, value: torch.Tensor) -> None:
        self.calls.append((method, step, value.detach().cpu().clone()))
