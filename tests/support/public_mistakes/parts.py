"""Records, an own loop, trainings with Opacus, and the statement of what dpspec reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dpspec

DELTA, FEATURES = 1e-5, 20

#: A seed that is not guessable; tests are deterministic.
SECRET = 0x3E81_5B0C_77A2_19

#: A training: the folder of its recording, and whether it makes the mistake. It returns the epsilon of its accountant.
Script = Callable[[Path, bool], float]


@dataclass(frozen=True, kw_only=True)
class PublicMistake:
    """A script, its public source, and what ``dpspec check`` says about its claim.

    source: the path of a thread on GitHub, or a package and its version. says: ``deviates``, ``open``, ``refuted``, or
    ``caution`` (proved, with exit code 1). words: a regular expression that the printed text matches. claim: further
    options of the claim; twin_claim: other values for the twin.
    """

    script: Script
    source: str
    says: str
    words: str
    claim: Mapping[str, Any] = field(default_factory=dict)
    twin_claim: Mapping[str, Any] = field(default_factory=dict)


#: The scripts of all imported modules.
MISTAKES: list[PublicMistake] = []


def mistake(source: str, says: str, words: str, **claims: Any) -> Callable[[Script], Script]:
    """Add the decorated script to ``MISTAKES``."""

    def register(script: Script) -> Script:
        MISTAKES.append(PublicMistake(script=script, source=source, says=says, words=words, **claims))
        return script

    return register


def own_loop(source: str, says: str, words: str, *, steps: int = 20, **options: Any) -> Callable[..., Script]:
    """Add a plain loop whose steps are the decorated function of the loop, the recorder, a batch and ``mistaken``.

    options: claims of the mistake, and of :class:`OwnLoop`.
    """
    claims = {name: options.pop(name) for name in ("claim", "twin_claim") if name in options}

    def register(step: Callable[[OwnLoop, Any, Tensor, bool], None]) -> Script:
        def script(folder: Path, mistaken: bool) -> float:
            loop = OwnLoop(**options)
            for run, drawn in loop.recorded(folder, steps):
                step(loop, run, drawn, mistaken)
            return loop.epsilon(steps)

        script.__name__ = step.__name__
        return mistake(source, says, words, **claims)(script)

    return register


def opacus_loop(
    source: str, says: str, words: str, *, epochs: int = 2, make: Callable[[bool], OpacusTraining] | None = None
) -> Callable[..., Script]:
    """Add a training with Opacus. The decorated function of it, a batch and ``mistaken`` is the loss, or None."""

    def register(loss: Callable[[OpacusTraining, Tensor, Tensor, bool], Tensor | None]) -> Script:
        def script(folder: Path, mistaken: bool) -> float:
            training = OpacusTraining() if make is None else make(mistaken)
            for x, y in training.recorded(folder, epochs):
                if (value := loss(training, x, y, mistaken)) is not None:
                    training.step(value)
            return training.epsilon()

        script.__name__ = loss.__name__
        return mistake(source, says, words)(script)

    return register


@cache
def rdp_epsilon(sigma: float, rate: float, steps: int) -> float:
    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(DELTA))


def dataset(records: int = 300) -> TensorDataset:
    generator = torch.Generator().manual_seed(SECRET)
    x = torch.randn(records, FEATURES, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))


class OwnLoop:
    """A loop in plain torch: records, model, optimizer, and gradients of single records.

    state: what a script keeps between its steps.
    """

    state: Any = None

    def __init__(
        self,
        *,
        records: int = 300,
        sigma: float = 1.0,
        clip: float = 0.5,
        rate: float = 0.1,
        model: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=0.2),
    ) -> None:
        torch.manual_seed(SECRET)
        self.data = dataset(records)
        self.x, self.y = self.data.tensors
        self.sigma, self.clip, self.rate, self.records = sigma, clip, rate, records
        self.model = classifier() if model is None else model
        self.parameters = list(self.model.parameters())
        self.optimizer = optimizer(self.parameters)
        self._rows = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def _loss(self, values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(self.model, values, (x[None],)), y[None])

    def recorder(self, folder: Path, **options: Any) -> Any:
        declared = {"noise_multiplier": self.sigma, "clip_norm": self.clip, "rate": self.rate, "records": self.records}
        return dpspec.record(folder, model=self.model, optimizer=self.optimizer, **{**declared, **options})

    def recorded(self, folder: Path, steps: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield the recorder and a Poisson batch for each step."""
        with self.recorder(folder) as run:
            for _ in range(steps):
                yield run, self.poisson()

    def poisson(self, rate: float | None = None) -> Tensor:
        return (torch.rand(self.records) < (self.rate if rate is None else rate)).nonzero().squeeze(1)

    def rows(self, drawn: Tensor) -> list[Tensor]:
        """The gradient of each drawn record, for each parameter (b, ...)."""
        values = {name: p.detach() for name, p in self.model.named_parameters()}
        if not len(drawn):
            return [torch.zeros(0, *p.shape) for p in self.parameters]
        return list(self._rows(values, self.x[drawn], self.y[drawn]).values())

    def clipped(self, rows: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The norm (b,) of each record's clipped gradient, and their sum for each parameter."""
        norms = norms_of(rows)
        factors = (self.clip / norms.clamp_min(1e-12)).clamp_max(1.0)
        return norms * factors, [torch.einsum("i,i...", factors, row) for row in rows]

    def honest(self, run: Any, drawn: Tensor, *, noise: float = 1.0, divisor: float | None = None) -> None:
        """Make one honest step on the drawn records. noise: a factor."""
        self.step(run, drawn, *self.clipped(self.rows(drawn)), self.noise(noise), divisor)

    def noise(self, scale: float = 1.0) -> list[Tensor]:
        return [scale * self.sigma * self.clip * torch.randn_like(p) for p in self.parameters]

    def step(
        self,
        run: Any,
        drawn: Tensor,
        norms: Tensor,
        total: Iterable[Tensor],
        noise: Iterable[Tensor],
        divisor: float | None = None,
        gradient: Iterable[Tensor] | None = None,
    ) -> None:
        """Step with ``gradient`` (by default sum and noise over the divisor) and report the other arguments."""
        total, noise = list(total), list(noise)
        by = self.rate * self.records if divisor is None else divisor
        mean = [(t + n) / by for t, n in zip(total, noise, strict=True)]
        for p, value in zip(self.parameters, mean if gradient is None else gradient, strict=True):
            p.grad = value
        self.optimizer.step()
        run.sampled(drawn)
        run.clipped(norms)
        run.summed(total)
        run.noised(noise)
        run.stepped()

    def epsilon(self, steps: int, *, sigma: float | None = None, rate: float | None = None) -> float:
        return rdp_epsilon(self.sigma if sigma is None else sigma, self.rate if rate is None else rate, steps)


def norms_of(rows: Sequence[Tensor]) -> Tensor:
    """The norm (b,) of each record's gradient over all parameters."""
    return torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)


class OpacusTraining:
    """The parts of ``make_private``, and a recorder of them."""

    def __init__(
        self,
        model: nn.Module | None = None,
        data: Any = None,
        *,
        sigma: float = 1.1,
        clip: float = 0.5,
        batch: int = 30,
        loader: Mapping[str, Any] | None = None,
        inner: Callable[[nn.Module], torch.optim.Optimizer] = lambda model: torch.optim.SGD(model.parameters(), lr=0.2),
        **options: Any,
    ) -> None:
        torch.manual_seed(SECRET)
        self.plain = classifier() if model is None else model
        self.inner = inner(self.plain)
        self.data = dataset() if data is None else data
        self.engine = PrivacyEngine(accountant="rdp")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private = self.engine.make_private(
                module=self.plain,
                optimizer=self.inner,
                data_loader=DataLoader(self.data, batch_size=batch, **(loader or {})),
                noise_multiplier=sigma,
                max_grad_norm=clip,
                **options,
            )
        self.model, self.optimizer, self.loader = private[0], private[1], private[-1]
        self.criterion = private[2] if len(private) == 4 else nn.CrossEntropyLoss()

    def recorder(self, folder: Path, **options: Any) -> Any:
        parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader, "engine": self.engine}
        return dpspec.record(folder, **{**parts, **options})

    def recorded(self, folder: Path, epochs: int = 2) -> Iterator[Any]:
        """Yield each batch of the recorded training."""
        with self.recorder(folder):
            for _ in range(epochs):
                yield from self.loader

    def step(self, loss: Any) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epsilon(self) -> float:
        return float(self.engine.get_epsilon(DELTA))


def accounted_training(
    folder: Path,
    accountant: RDPAccountant,
    *,
    epochs: int,
    batch: int,
    sigma: float,
    records: int = 300,
    rate: float | None = None,
) -> Iterator[int]:
    """Train with Opacus' parts and an accountant, which gets ``rate`` instead of the loader's; yield each epoch."""
    torch.manual_seed(SECRET)
    data = DataLoader(dataset(records), batch_size=batch, drop_last=records % batch > 0)
    loader, model = DPDataLoader.from_data_loader(data), GradSampleModule(classifier())
    inner = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = DPOptimizer(inner, noise_multiplier=sigma, max_grad_norm=0.5, expected_batch_size=batch)
    hook = accountant.get_optimizer_hook_fn(sample_rate=loader.sample_rate if rate is None else rate)
    optimizer.attach_step_hook(hook)
    with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=accountant):
        for epoch in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            yield epoch
