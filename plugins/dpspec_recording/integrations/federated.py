"""Records the rounds of a server that averages the updates of clients with noise (DP-FedAvg), and judges one client.

A client is one record of the recording, with all its records. Guide: ``docs/how-to/audit-federated-rounds.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import dpspec
from dpspec import decimals
from dpspec.accounting import PrivacyLoss
from dpspec.errors import UsageError
from dpspec.reporters.terminal import render_brief
from dpspec.results.checked_run import CheckedRun
from dpspec_recording.folder.free_number import numbered
from dpspec_recording.observers.rules import SECOND_OPTIMIZER
from dpspec_recording.parts import Parts
from dpspec_recording.recorder import Recorder


class Rounds:
    """Reports the rounds of one server to a recorder; made by :func:`record_rounds`."""

    def __init__(
        self, recorder: Recorder, parameters: Sequence[Tensor], noise_multiplier: float, *, is_sampled: bool
    ) -> None:
        self._recorder = recorder
        self._noise_multiplier, self._is_sampled = noise_multiplier, is_sampled
        #: The number of rounds of each client.
        self._rounds: Counter[int] = Counter()
        self._shapes = [tuple(parameter.shape) for parameter in parameters]
        self._types = [parameter.dtype for parameter in parameters]

    def aggregated(self, clients: Sequence[int], updates: Sequence[Iterable[Tensor]], noise: Iterable[Tensor]) -> None:
        """Report one round, after the server's optimizer moved the global model.

        The norms and the sum are computed from ``updates``, not taken from the server. The gradients of the optimizer
        must be this sum plus the noise, over a divisor.

        Args:
            clients: The numbers of the clients that were drawn for this round, from 0.
            updates: The summand of each drawn client, in the order of ``clients``: the clipped difference of the global
                and the client's parameters, with a tensor for each trainable parameter.
            noise: The noise that was added to the sum, a tensor for each trainable parameter.

        Raises:
            UsageError: There is not one update for each client, or a tensor has another shape than its parameter.
        """
        if len(updates) != len(clients):
            counts = f"{len(updates)} updates of {len(clients)} clients"
            raise UsageError(f"aggregated got {counts}: give one of each client")
        pairs = zip(clients, updates, strict=True)
        rows = [self._tensors(update, f"the update of client {client}") for client, update in pairs]
        total = [torch.zeros(shape, dtype=torch.float64) for shape in self._shapes]
        for row in rows:
            for summed, part in zip(total, row, strict=True):
                summed += part.detach().cpu()
        norms = [torch.stack([part.detach().double().norm() for part in row]).norm() for row in rows]
        self._recorder.sampled(clients)
        self._recorder.clipped(torch.stack(norms) if norms else torch.zeros(0))
        self._recorder.summed([summed.to(kind) for summed, kind in zip(total, self._types, strict=True)])
        self._recorder.noised(self._tensors(noise, "the noise"))
        self._recorder.stepped()
        self._rounds.update(int(client) for client in clients)

    def epsilon(self, delta: float) -> float:
        """The certified epsilon of the recorded rounds for one client, at ``delta`` in (0, 1).

        Without a rate a client costs one Gaussian release in each of its rounds, and the client of most rounds counts.
        """
        most = max(self._rounds.values(), default=0)
        if self._is_sampled or most == 0:
            return self._recorder.epsilon(delta)
        if not self._noise_multiplier > 0.0:
            return math.inf
        return PrivacyLoss.gaussian(self._noise_multiplier / math.sqrt(most) * (1.0 - 1e-12)).epsilon(delta).upper

    def _tensors(self, values: Iterable[Tensor], name: str) -> list[Tensor]:
        tensors = list(values)
        if [tuple(value.shape) for value in tensors] != self._shapes:
            raise UsageError(f"{name} must have a tensor of the shape of each trainable parameter: {self._shapes}")
        return tensors


@contextmanager
def record_rounds(
    folder: str | PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    clients: int,
    rate: float | None,
    clip_norm: float,
    noise_multiplier: float,
) -> Iterator[Rounds]:
    """Record the rounds of a server.

    Args:
        folder: The recording's folder, as for ``dpspec.record``.
        model: The global model.
        optimizer: The server's optimizer, whose gradients are the noisy average of the updates: ``torch.optim.SGD``
            with ``lr=1`` is DP-FedAvg.
        clients: The number of clients that may be drawn.
        rate: The probability, in (0, 1], that a round draws a client, independently of the others. None if the server
            draws clients otherwise, without regard to their data: a round costs each drawn client one Gaussian release.
        clip_norm: The largest l2 norm of the update of one client, > 0.
        noise_multiplier: The standard deviation of the noise on the sum of the updates, in clip norms.

    Yields:
        The reporter of the rounds.

    Raises:
        UsageError: An argument is invalid, or the folder is not empty.
    """
    declared: Any = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm, "rate": rate, "records": clients}
    # the batches of a loader without a known rate, with an order that does not depend on the data
    loader = DataLoader(range(clients), batch_size=1) if rate is None else None  # type: ignore[arg-type, var-annotated]
    training_parts = Parts(model, optimizer, loader, None, None, declared, federated=True)
    with Recorder(numbered(Path(folder).absolute()), training_parts) as recorder:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        yield Rounds(recorder, trained, noise_multiplier, is_sampled=rate is not None)


@dataclass(frozen=True)
class CheckedRounds:
    """The verdict on one client.

    Attributes:
        run: The result of ``dpspec.check``. Its records are clients.
        delta: The delta of the epsilon.
    """

    run: CheckedRun
    delta: float

    def __str__(self) -> str:
        """The verdict and the report, in which a record is a client."""
        (audit,) = self.run.result.audits
        clients = audit.document["data"]["records"]
        bound = "no certified epsilon" if self.run.epsilon is None else f"epsilon <= {decimals.upper(self.run.epsilon)}"
        state = "proved" if self.run.proved else "not proved"
        delta = decimals.exact(self.delta)
        headline = f"One client of {clients}, with all its records: {state}, {bound} at delta = {delta}."
        return f"{headline}\nIn the report a record is a client.\n{render_brief(self.run.result)}"


def check_rounds(
    folder: str | PathLike[str],
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    accept: Sequence[str] = (SECOND_OPTIMIZER,),
    declare: str | PathLike[str] | None = None,
) -> CheckedRounds:
    """Compare recorded rounds with a claim about one client.

    ``dpspec check FOLDER --accept second-optimizer`` gives the same verdict: simulated clients have optimizers.

    Args:
        folder: The folder of :func:`record_rounds`.
        epsilon: The claim; None for no claim.
        delta: Of the claim, in (0, 1).
        accept: The cautions that are accepted.
        declare: A YAML file with facts for statements, as of :func:`dpspec.check`.

    Returns:
        The verdict. ``print`` shows it with the report.

    Raises:
        UsageError: The folder or an argument is invalid.
        NothingToRunError: No round was recorded.
    """
    return CheckedRounds(dpspec.check(folder, epsilon=epsilon, delta=delta, accept=accept, declare=declare), delta)
