"""A strategy of Flower that records the rounds of its private strategy, with a client as a record.

A round costs each drawn client one Gaussian release, without amplification: ``docs/how-to/audit-federated-rounds.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from os import PathLike
from typing import Any

import numpy as np
import torch
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec_recording.integrations.federated import Rounds, record_rounds


def _delegated(method: str) -> Any:
    return lambda self, *arguments: getattr(self._strategy, method)(*arguments)


class RecordedStrategy(Strategy, AbstractContextManager["RecordedStrategy"]):
    """Delegates to a private strategy, and records its clipped updates, its noise and its steps."""

    configure_evaluate = _delegated("configure_evaluate")
    aggregate_evaluate = _delegated("aggregate_evaluate")
    summary = _delegated("summary")

    def __init__(self, strategy: Any, folder: str | PathLike[str], *, clients: int) -> None:
        """Prepare the recording, which begins with the first round.

        Args:
            strategy: Flower's ``DifferentialPrivacyServerSideFixedClipping``, around a strategy with the mean of the
                clients' arrays, as ``FedAvg`` of clients with equal weights.
            folder: The recording's folder, as for ``dpspec.record``.
            clients: The number of clients that may be drawn.

        Raises:
            UsageError: The strategy is not of this class. In a round: more clients took part, a reply has several
                records of arrays, arrays have integers, or a class derived from Flower's changed them after the noise.
        """
        if not isinstance(strategy, DifferentialPrivacyServerSideFixedClipping):
            kind = type(strategy).__name__
            raise UsageError(f"the strategy is {kind}: give Flower's DifferentialPrivacyServerSideFixedClipping")
        self._strategy, self._folder, self._clients = strategy, folder, clients
        self._stack = ExitStack()
        self._rounds: Rounds | None = None
        self._numbers: dict[int, int] = {}
        self._average: list[Tensor] = []
        self._averaged: list[list[Tensor]] = []
        self._noisy: list[Tensor] = []
        self._aggregate, strategy.strategy.aggregate_train = strategy.strategy.aggregate_train, self._observe_average
        self._add_noise = strategy._add_noise_to_aggregated_arrays
        strategy._add_noise_to_aggregated_arrays = self._observe_noise

    def __exit__(self, *error: Any) -> None:
        """End the recording."""
        self._strategy.strategy.aggregate_train = self._aggregate
        self._strategy._add_noise_to_aggregated_arrays = self._add_noise
        self._stack.__exit__(*error)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """Begin the recording with the first arrays, and delegate."""
        if self._rounds is None:
            self._parameters = nn.ParameterList(_tensors(arrays))
            self._server = torch.optim.SGD(self._parameters, lr=1.0)
            noise, clip = self._strategy.noise_multiplier, self._strategy.clipping_norm
            declared = {"clients": self._clients, "rate": None, "clip_norm": clip, "noise_multiplier": noise}
            recorded = record_rounds(self._folder, self._parameters, self._server, **declared)
            self._rounds = self._stack.enter_context(recorded)
        return list(self._strategy.configure_train(server_round, arrays, config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Delegate, and report the round with the clipped arrays that the strategy averaged."""
        messages = list(replies)
        arrays, metrics = self._strategy.aggregate_train(server_round, messages)
        if arrays is None or self._rounds is None:
            return arrays, metrics
        start, new = [p.detach().clone() for p in self._parameters], _tensors(arrays)
        if not all(map(torch.equal, self._noisy, new)):
            kind = type(self._strategy).__name__
            raise UsageError(
                f"{kind} changes the arrays after the noise, which the recorder takes for other noise: call "
                "record_rounds in the server, or make this change after the last round"
            )
        updates: dict[int, list[Tensor]] = {}
        for message, client_arrays in zip(messages, self._averaged, strict=True):
            number = self._numbers.setdefault(message.metadata.src_node_id, len(self._numbers))
            if number >= self._clients:
                raise UsageError(f"more than clients={self._clients} took part")
            changes = [old - part for old, part in zip(start, client_arrays, strict=True)]
            earlier = updates.get(number, [torch.zeros_like(part) for part in changes])  # of another reply of the node
            updates[number] = [part + change for part, change in zip(earlier, changes, strict=True)]
        mean = [old - sum(changes) / len(messages) for old, *changes in zip(start, *updates.values(), strict=True)]
        rounded = (_is_rounded(part, exact, len(messages)) for part, exact in zip(self._average, mean, strict=True))
        before = mean if all(rounded) else self._average
        noise = [len(messages) * (average - part) for average, part in zip(before, new, strict=True)]
        for p, old, part in zip(self._parameters, start, new, strict=True):
            p.grad = old - part
        self._server.step()
        self._rounds.aggregated(list(updates), list(updates.values()), noise)
        return arrays, metrics

    def _observe_average(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Note the arrays of the replies, and their average, to which the private strategy adds noise."""
        messages = list(replies)
        clipped = [_arrays_of(message) for message in messages]
        arrays, metrics = self._aggregate(server_round, messages)
        self._average = [] if arrays is None else _tensors(arrays)
        averaged = [_arrays_of(message) for message in messages]
        # FedMedian and FedTrimmedAvg take the arrays out of the replies
        self._averaged = [
            later if len(later) == len(early) else early for early, later in zip(clipped, averaged, strict=True)
        ]
        return arrays, metrics

    def _observe_noise(self, arrays: Any) -> Any:
        """Note the noisy average."""
        noisy = self._add_noise(arrays)
        self._noisy = _tensors(noisy)
        return noisy

    def epsilon(self, delta: float) -> float:
        """The certified epsilon of the recorded rounds for one client, at ``delta`` in (0, 1); 0 before the first."""
        return 0.0 if self._rounds is None else self._rounds.epsilon(delta)


def _is_rounded(part: Tensor, exact: Tensor, summands: int) -> bool:
    """Whether the server's average is the exact one, except for the rounding of float32."""
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    return bool(((part - exact).abs() <= 2 * summands * torch.finfo(torch.float32).eps * largest).all())


def _arrays_of(message: Any) -> list[Tensor]:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise UsageError(
            f"a reply has {len(records)} records of arrays, and the strategy clips each by itself: send one record"
        )
    return _tensors(records[0])


def _tensors(record: Any) -> list[Tensor]:
    """The arrays in float64, so that the server's step reaches Flower's float32 values exactly."""
    arrays = record.to_numpy_ndarrays()
    if not all(np.issubdtype(array.dtype, np.floating) for array in arrays):
        raise UsageError("the strategy adds noise to arrays of integers: send floating-point arrays only")
    return [torch.from_numpy(array.astype(np.float64)) for array in arrays]
