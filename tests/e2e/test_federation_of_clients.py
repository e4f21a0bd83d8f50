"""Five clients over ten rounds in one recorded script: honest, and with faults of one client."""

import pytest
import torch
from support.checked_runs import Question, check_run
from support.federated_clients import (
    ACCOUNTANT_PER_ROUND,
    PLAIN_STEPS,
    STATE_WITHOUT_NOISE,
    clients_with,
    federation,
)

from dpspec.accounting import PrivacyLoss
from dpspec_recording.judge import joined_checks
from dpspec_recording.scripts.session import start

pytestmark = [pytest.mark.filterwarnings("ignore")]

CLIENTS = 5


def recorded(folder, fault="", rounds=10):
    """The clients, and the check of each one's recording."""
    torch.seed()
    clients = clients_with(CLIENTS, fault)
    session = start(folder, whole=True, summary=False, client=True)
    try:
        federation(clients, rounds)
    finally:
        session.end()
    assert session.failures == []
    question = Question(delta=1e-5, epsilon=20.0)
    return clients, [check_run(folder / str(number), question) for number in range(1, CLIENTS + 1)]


@pytest.mark.slow
def test_each_client_of_a_sound_federation_is_proved_at_the_total_of_all_rounds(tmp_path):
    clients, found = recorded(tmp_path / "run")
    assert [(client.verdict, client.fine, client.run.steps) for client in found] == [("proved", True, 100)] * CLIENTS
    total = PrivacyLoss.of_steps([(1.0, 0.1, 100)]).epsilon(1e-5).upper
    for client, check in zip(clients, found, strict=True):
        upper = check.costs[1].interval.upper
        assert upper == pytest.approx(total, rel=1e-3)
        assert upper < client.accountant.get_epsilon(1e-5)
        (statement,) = (one for one in check.assumptions if one.name == "server-weights")
        assert statement.status == "declared"


@pytest.mark.ci
def test_a_state_that_was_trained_without_noise_leaves_the_server_open(tmp_path):
    _, found = recorded(tmp_path / "run", STATE_WITHOUT_NOISE, rounds=2)
    assert found[0].verdict == "open"
    assert "the script also made steps without privacy: 3 steps of SGD" in found[0].doubts


@pytest.mark.ci
def test_an_accountant_per_round_deviates_for_its_client_alone(tmp_path):
    _, found = recorded(tmp_path / "run", ACCOUNTANT_PER_ROUND, rounds=2)
    assert found[0].status[1] == "deviates"
    assert found[0].rejected == {joined_checks.RECOUNTED.title}
    assert [client.verdict for client in found[1:]] == ["proved"] * (CLIENTS - 1)


@pytest.mark.ci
def test_steps_without_noise_between_rounds_are_named(tmp_path):
    _, found = recorded(tmp_path / "run", PLAIN_STEPS, rounds=2)
    assert found[0].verdict == "open"
    assert "starts with parameters that no earlier part ended with" in found[0].doubts
    assert "the script made 3 steps of SGD on tensors of the model without privacy" in found[0].doubts
