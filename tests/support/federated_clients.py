"""A server that averages the weights of private clients, with a new engine for each client in each round, and faults.

Each client has its own records, loads the server's weights, makes private steps, and sends its weights.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dpspec_recording.scripts.session import start
from support.checked_runs import CheckedRun, Question, check_run

FEATURES, RECORDS, BATCH = 6, 200, 20

#: Faults of a federation by name.
STATE_WITHOUT_NOISE, ACCOUNTANT_PER_ROUND, PLAIN_STEPS = "state without noise", "accountant per round", "plain steps"
RECORDS_IN_STATE = "records in the averaged state"
NO_NOISE, TWICE_THE_RATE = "a round without noise", "a round at twice the rate"
RECORDS_FROM_SERVER = "records in the server's weights"


class FeatureMeans(nn.Module):
    """Passes records on, and keeps a moving average of them in a buffer, which a server averages like weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        """The records as they are."""
        if self.training and len(x):
            self.means = 0.9 * self.means + 0.1 * x.detach().mean(0)
        return x


def new_model(fault: str = "") -> nn.Sequential:
    """The model of a federation, whose clients have the fault."""
    first = [FeatureMeans()] if fault == RECORDS_IN_STATE else []
    return nn.Sequential(*first, nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


def plain_steps(model: nn.Module, data: TensorDataset, steps: int = 3) -> None:
    """Train without clipping and noise."""
    optimizer, (x, y) = torch.optim.SGD(model.parameters(), lr=0.05), data.tensors
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


@dataclass
class Client:
    """A client that trains in each round, with a new model and engine; ``accountant`` goes from round to round."""

    data: TensorDataset
    fault: str = ""
    noise: float = 1.0
    accountant: Any = None
    models: list[nn.Module] = field(default_factory=list)

    def train(self, weights: dict[str, Tensor], epochs: int = 1) -> dict[str, Tensor]:
        """The weights after the private steps of one round."""
        model = new_model(self.fault)
        model.load_state_dict(weights)
        if self.fault == PLAIN_STEPS and self.accountant is not None:
            plain_steps(model, self.data)
        engine = PrivacyEngine(accountant="rdp")
        if self.accountant is not None and self.fault != ACCOUNTANT_PER_ROUND:
            engine.accountant = self.accountant
        later = self.accountant is not None
        self.accountant = engine.accountant
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(self.data, batch_size=BATCH),
            noise_multiplier=0.0 if later and self.fault == NO_NOISE else self.noise,
            max_grad_norm=1.0,
        )
        if later and self.fault == TWICE_THE_RATE:
            loader.batch_sampler.sample_rate *= 2
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(private(x), y).backward()
                optimizer.step()
        sent = copy.deepcopy(private._module.state_dict())
        if self.fault == STATE_WITHOUT_NOISE:  # what the client sends besides was trained without noise
            other = new_model()
            other.load_state_dict(sent)
            plain_steps(other, self.data)
            sent = copy.deepcopy(other.state_dict())
        return sent


def clients_with(count: int, fault: str = "") -> list[Client]:
    """Clients with records of their own; the first one has the fault, or all have it if it is one of their model."""
    clients = []
    for number in range(count):
        x = torch.randn(RECORDS, FEATURES)
        clients.append(
            Client(TensorDataset(x, (x[:, 0] > 0).long()), fault if number == 0 or fault == RECORDS_IN_STATE else "")
        )
    return clients


def average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The average of the clients' weights."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def recorded_federation(
    folder: Path, federate: Callable[[list[Client], int], None], fault: str, rounds: int
) -> tuple[list[Client], list[CheckedRun]]:
    """Five clients in one recorded script, and the check of each one's recording.

    Args:
        folder: The folder of the recordings.
        federate: Trains the clients for a number of rounds.
        fault: As for :func:`clients_with`.
        rounds: The number of rounds.
    """
    torch.seed()
    clients = clients_with(5, fault)
    session = start(folder, whole=True, summary=False, client=True)
    try:
        federate(clients, rounds)
    finally:
        session.end()
    assert session.failures == []
    question = Question(delta=1e-5, epsilon=20.0)
    return clients, [check_run(folder / str(number), question) for number in range(1, len(clients) + 1)]


def with_records(weights: dict[str, Tensor], client: Client) -> dict[str, Tensor]:
    """The weights, whose first rows a faulty server replaces by records of a client."""
    name = next(name for name, tensor in weights.items() if tensor.shape[-1:] == (FEATURES,))
    (x, _), tensor = client.data.tensors, weights[name]
    return {**weights, name: x[: len(tensor)].clone()}


def federation(clients: list[Client], rounds: int, server: Callable[..., dict[str, Tensor]] = average) -> None:
    """All clients train in each round from the server's weights."""
    weights = new_model(clients[-1].fault).state_dict()
    for _ in range(rounds):
        weights = server([client.train(weights) for client in clients])
        if clients[0].fault == RECORDS_FROM_SERVER:
            weights = with_records(weights, clients[0])
