"""A simulated server of DP-FedAvg: a sound run is proved for one client, and six faults are found with a message."""

from pathlib import Path

import pytest
import torch
from support.federated_server import serve
from torch import nn

from dpspec.errors import UsageError
from dpspec.integrations.federated import check_rounds, record_rounds

pytestmark = pytest.mark.filterwarnings("ignore:dpspec, rule guessable-seed")


@pytest.mark.ci
def test_a_sound_server_is_proved_for_one_client(tmp_path: Path) -> None:
    serve(tmp_path / "rounds")
    checked = check_rounds(tmp_path / "rounds", epsilon=8, accept=("second-optimizer", "not-replayed"))
    assert checked.run.proved
    assert not check_rounds(tmp_path / "rounds", epsilon=8).run.proved  # no round is replayed
    first = str(checked).splitlines()[0]
    assert first.startswith("One client of 200, with all its records: proved, epsilon <= 4.68")
    confirmed = " ".join(checked.run.result.audits[0].recording.confirm)
    assert "from no other client's update, control variate, statistic or loss" in confirmed
    assert not check_rounds(tmp_path / "rounds", epsilon=4).run.proved


@pytest.mark.filterwarnings("error:dpspec, rule second-optimizer")
def test_optimizers_of_clients_are_no_caution_at_the_first_round(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    client = nn.Linear(4, 2)
    server, local = (torch.optim.SGD(of.parameters(), lr=1.0) for of in (model, client))
    noise = [torch.randn_like(p) for p in model.parameters()]
    with record_rounds(tmp_path / "rounds", model, server, clients=9, rate=0.5, clip_norm=1, noise_multiplier=1) as run:
        for own, p, added in zip(client.parameters(), model.parameters(), noise, strict=True):
            own.grad, p.grad = torch.ones_like(own), added.clone()
        local.step()
        server.step()
        run.aggregated([], [], noise)
    assert "at delta = 1e-5." in str(check_rounds(tmp_path / "rounds")).splitlines()[0]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no clipping", "rejected tests: largest clipped norm"),
        ("clipping after averaging", "gradients other than the reported sum and noise"),
        ("half the noise", "times the declared standard deviation"),
        ("fixed clients", "variance of inclusions per record"),
        ("weights by size", "rejected tests: largest clipped norm"),
        ("same seed", "Draw new noise for every coordinate of every tensor at every step"),
    ],
)
def test_a_fault_of_the_server_is_found(fault: str, message: str, tmp_path: Path) -> None:
    serve(tmp_path / "rounds", fault=fault)
    checked = check_rounds(tmp_path / "rounds", epsilon=8)
    assert checked.run.result.audits[0].conformance.status == "deviates"
    assert str(checked).startswith("One client of 200, with all its records: not proved, no certified epsilon")
    assert message in " ".join(str(checked).split())


@pytest.mark.family
@pytest.mark.parametrize(
    ("clients", "updates", "noise", "message"),
    [
        ([0, 1], [[torch.zeros(2, 3)]], [torch.zeros(2, 3)], "1 updates of 2 clients"),
        ([0], [[torch.zeros(3, 2)]], [torch.zeros(2, 3)], "the update of client 0 must have a tensor of the shape"),
        ([0], [[torch.zeros(2, 3)]], [], "the noise must have a tensor of the shape"),
    ],
)
def test_tensors_of_other_shapes_are_refused(clients, updates, noise, message: str, tmp_path: Path) -> None:
    model = nn.Linear(3, 2, bias=False)
    declared = {"clients": 9, "rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 1.0}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with (
        record_rounds(tmp_path / "rounds", model, optimizer, **declared) as rounds,
        pytest.raises(UsageError, match=message),
    ):
        rounds.aggregated(clients, updates, noise)


def test_a_round_without_clients_is_noise_alone(tmp_path: Path) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    declared = {"clients": 9, "rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 2.0}
    with record_rounds(tmp_path / "rounds", model, optimizer, **declared) as rounds:
        noise = 2.0 * torch.randn(2, 3)
        model.weight.grad = noise / 0.9
        optimizer.step()
        rounds.aggregated([], [], [noise])
        assert 0.0 < rounds.epsilon(1e-5) < 2.0
    assert check_rounds(tmp_path / "rounds").run.epsilon is not None


def test_rounds_of_drawn_clients_have_the_epsilon_of_the_check(tmp_path: Path) -> None:
    """Without a rate: nine clients, three in turn in each of six rounds, so that each is in two rounds."""
    torch.manual_seed(3)  # one of a hundred draws of so few numbers supports less than the declared noise
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    declared = {"clients": 9, "rate": None, "clip_norm": 1.0, "noise_multiplier": 2.0}
    with record_rounds(tmp_path / "rounds", model, optimizer, **declared) as rounds:
        for number in range(6):
            drawn = [3 * (number % 3) + i for i in range(3)]
            updates = [torch.full((2, 3), 0.1) for _ in drawn]
            noise = 2.0 * torch.randn(2, 3)
            model.weight.grad = (torch.stack(updates).sum(0) + noise) / 3.0
            optimizer.step()
            rounds.aggregated(drawn, [[update] for update in updates], [noise])
        spent = rounds.epsilon(1e-5)
    checked = check_rounds(tmp_path / "rounds")
    assert checked.run.epsilon == pytest.approx(spent, rel=1e-3)
