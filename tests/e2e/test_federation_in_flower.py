"""Five clients over ten rounds of Flower's server in one recorded script: honest, and with faults."""

import pytest
import torch

pytest.importorskip("flwr", exc_type=ImportError)

from support.checked_runs import Question, check_run
from support.federated_clients import (
    ACCOUNTANT_PER_ROUND,
    PLAIN_STEPS,
    RECORDS_IN_STATE,
    clients_with,
)
from support.flower_clients import flower_federation

from dpspec.accounting import PrivacyLoss
from dpspec_recording.judge import joined_checks
from dpspec_recording.scripts.session import start

pytestmark = [pytest.mark.filterwarnings("ignore")]

CLIENTS = 5


def recorded(folder, fault="", rounds=2):
    """The clients, and the check of each one's recording."""
    torch.seed()
    clients = clients_with(CLIENTS, fault)
    session = start(folder, whole=True, summary=False, client=True)
    try:
        flower_federation(clients, rounds)
    finally:
        session.end()
    assert session.failures == []
    question = Question(delta=1e-5, epsilon=20.0)
    return clients, [check_run(folder / str(number), question) for number in range(1, CLIENTS + 1)]


@pytest.mark.slow
def test_each_client_is_proved_at_the_total_of_all_rounds(tmp_path):
    clients, found = recorded(tmp_path / "run", rounds=10)
    assert [(client.verdict, client.fine, client.run.steps) for client in found] == [("proved", True, 100)] * CLIENTS
    total = PrivacyLoss.of_steps([(1.0, 0.1, 100)]).epsilon(1e-5).upper
    for client, check in zip(clients, found, strict=True):
        assert check.costs[1].interval.upper == pytest.approx(total, rel=1e-3)
        assert check.costs[1].interval.upper < client.accountant.get_epsilon(1e-5)


@pytest.mark.ci
def test_an_averaged_state_that_holds_records_deviates(tmp_path):
    _, found = recorded(tmp_path / "run", RECORDS_IN_STATE)
    for client in found:
        assert client.status[1] == "deviates"
        assert "changed model state without noise" in client.rejected


@pytest.mark.ci
def test_an_accountant_per_round_deviates_for_its_client_alone(tmp_path):
    _, found = recorded(tmp_path / "run", ACCOUNTANT_PER_ROUND)
    at_fault = [client for client in found if client.verdict != "proved"]
    assert [client.rejected for client in at_fault] == [{joined_checks.RECOUNTED.title}]


@pytest.mark.ci
def test_steps_without_noise_between_rounds_are_named(tmp_path):
    _, found = recorded(tmp_path / "run", PLAIN_STEPS)
    named = "starts with parameters that no earlier part ended with"
    (at_fault,) = (client for client in found if named in client.doubts)
    assert at_fault.verdict == "open"
    assert "the script made 3 steps of SGD on tensors of the model without privacy" in at_fault.doubts
