"""A strategy of Flower in its own round loop, with clients in this process: a sound server, and faults."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", exc_type=ImportError)

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, FedMedian
from support.federated_server import local_update
from torch import nn

import dpspec
from dpspec.errors import UsageError
from dpspec.integrations.federated import CheckedRounds, check_rounds
from dpspec.integrations.flower import RecordedStrategy

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore")]

task_identity = pytest.importorskip("flwr.supercore.task_identity")  # Flower's runtime sets it in a server's process


@pytest.fixture(autouse=True)
def _in_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(task_identity.TaskIdentity, name, 1)


CLIENTS, DRAWN, CLIP, NOISE, ROUNDS = 12, 6, 0.5, 3.0, 25


class LocalGrid:
    """Flower's interface to the clients, which train here."""

    def __init__(self, fault: str, rounds: Counter[int]) -> None:
        self._fault, self._rounds = fault, rounds
        self._data = [(torch.randn(8, 20), torch.randint(0, 2, (8,))) for _ in range(CLIENTS)]

    def get_node_ids(self) -> list[int]:
        return [1000 + 7 * number for number in range(CLIENTS)]

    def send_and_receive(self, messages: Any, **_: Any) -> list[Message]:
        asked = list(messages)
        if self._fault == "two replies":
            asked = asked[1:] + asked[1:2]
        return [self._reply(message) for message in asked]

    def _reply(self, message: Message) -> Message:
        number = (message.metadata.dst_node_id - 1000) // 7
        self._rounds[number] += 1
        model = nn.Linear(20, 2)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        update = local_update(model, *self._data[number])
        with torch.no_grad():
            for p, part in zip(model.parameters(), update, strict=True):
                p -= part
        examples = number + 1 if self._fault == "weights by size" else 8
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": examples})}
        return Message(content=RecordDict(content), reply_to=message)


class Slowed(DifferentialPrivacyServerSideFixedClipping):
    """Moves half as far as the noisy average."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        pairs = zip(self.current_arrays.to_numpy_ndarrays(), arrays.to_numpy_ndarrays(), strict=True)
        return ArrayRecord([(old + new) / 2 for old, new in pairs]), metrics


def served(
    folder: Path,
    fault: str = "",
    *,
    clients: int = CLIENTS,
    rounds: Counter[int] | None = None,
    average: type[FedAvg] = FedAvg,
    private: type[DifferentialPrivacyServerSideFixedClipping] = DifferentialPrivacyServerSideFixedClipping,
) -> CheckedRounds:
    torch.seed()  # a small seed of torch is a caution, also if Flower draws noise by NumPy
    np.random.seed(None)
    strategy = private(average(fraction_train=DRAWN / CLIENTS, fraction_evaluate=0.0), NOISE, CLIP, DRAWN)
    add_noise, aggregate = strategy._add_noise_to_aggregated_arrays, strategy.strategy.aggregate_train

    def repeat_noise(arrays: Any) -> Any:
        np.random.seed(5)
        return add_noise(arrays)

    if fault == "same noise":
        strategy._add_noise_to_aggregated_arrays = repeat_noise
    if fault == "clip norm":
        strategy.strategy.aggregate_train = lambda *given: _unclipped(aggregate, *given)
    with RecordedStrategy(strategy, folder, clients=clients) as recorded:
        arrays = ArrayRecord(nn.Linear(20, 2).state_dict())
        recorded.start(
            grid=LocalGrid(fault, Counter() if rounds is None else rounds), initial_arrays=arrays, num_rounds=ROUNDS
        )
        assert recorded.epsilon(1e-5) > 0.0
    return check_rounds(folder, epsilon=15, accept=("second-optimizer", "not-replayed"))


def _unclipped(aggregate: Any, server_round: int, replies: Any) -> Any:
    for reply in replies:
        doubled = {name: array.numpy() + 0.5 for name, array in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord({name: torch.from_numpy(values) for name, values in doubled.items()})
    return aggregate(server_round, replies)


def test_the_rounds_of_flower_are_proved_without_amplification(tmp_path: Path) -> None:
    rounds: Counter[int] = Counter()
    checked = served(tmp_path / "rounds", rounds=rounds)
    assert checked.run.passed
    worst = dpspec.epsilon(
        noise_multiplier=NOISE, rate=1.0, steps=max(rounds.values())
    )  # of the client that was drawn most often
    assert checked.run.epsilon == pytest.approx(worst.upper, rel=1e-3)
    assert not any(finding.bound == "lower" for finding in checked.run.result.audits[0].findings)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("weights by size", "gradients other than the reported sum and noise"),
        ("same noise", "Draw new noise for every coordinate of every tensor at every step"),
        ("clip norm", "largest clipped norm"),
        ("two replies", "largest clipped norm"),
    ],
)
def test_a_fault_of_the_strategy_is_found(fault: str, message: str, tmp_path: Path) -> None:
    checked = served(tmp_path / "rounds", fault)
    assert not checked.run.proved
    assert message in " ".join(str(checked).split())


def test_a_median_of_the_clients_deviates(tmp_path: Path) -> None:
    """It takes the arrays out of the replies, which ended the server with a ValueError."""
    checked = served(tmp_path / "rounds", average=FedMedian)
    assert not checked.run.proved
    assert "gradients other than the reported sum and noise" in " ".join(str(checked).split())


def test_a_change_after_the_noise_is_refused(tmp_path: Path) -> None:
    """It was called noise of half the declared size."""
    with pytest.raises(UsageError, match="Slowed changes the arrays after the noise"):
        served(tmp_path / "rounds", private=Slowed)


def test_a_server_without_noise_needs_no_other_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "NOISE", 0.0)
    checked = served(tmp_path / "rounds")
    assert "25 of 25 updates got no noise" in " ".join(str(checked).split())
    assert "record again" not in str(checked)


def test_the_rounds_of_flowers_simulation_are_proved(tmp_path: Path) -> None:
    pytest.importorskip("ray", exc_type=ImportError)
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-W", "ignore", str(tests / "support" / "flower_simulation.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path]), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert "One client of 12, with all its records: proved, epsilon <= " in done.stdout, done.stderr


def test_other_strategies_and_more_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the strategy is FedAvg: give Flower's Differential"):
        RecordedStrategy(FedAvg(), tmp_path / "rounds", clients=3)
    with pytest.raises(UsageError, match="more than clients=7 took part"):
        served(tmp_path / "rounds", clients=7)
