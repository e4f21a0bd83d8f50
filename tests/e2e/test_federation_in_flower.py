"""Five clients over ten rounds of Flower's server in one recorded script: honest, and with faults."""

import pytest

pytest.importorskip("flwr", exc_type=ImportError)

from support.federated_clients import (
    ACCOUNTANT_PER_ROUND,
    NO_NOISE,
    PLAIN_STEPS,
    RECORDS_FROM_SERVER,
    RECORDS_IN_STATE,
    TWICE_THE_RATE,
    recorded_federation,
)
from support.flower_clients import flower_federation

from dpspec.accounting import PrivacyLoss
from dpspec_recording.judge import joined_checks

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.slow
def test_each_client_is_proved_at_the_total_of_all_rounds(tmp_path):
    clients, found = recorded_federation(tmp_path / "run", flower_federation, "", rounds=10)
    assert [(client.verdict, client.fine, client.run.steps) for client in found] == [("proved", True, 100)] * 5
    total = PrivacyLoss.of_steps([(1.0, 0.1, 100)]).epsilon(1e-5).upper
    for client, check in zip(clients, found, strict=True):
        assert check.costs[1].interval.upper == pytest.approx(total, rel=1e-3)
        assert check.costs[1].interval.upper < client.accountant.get_epsilon(1e-5)


@pytest.mark.ci
def test_an_averaged_state_that_holds_records_deviates(tmp_path):
    _, found = recorded_federation(tmp_path / "run", flower_federation, RECORDS_IN_STATE, rounds=2)
    for client in found:
        assert client.status[1] == "deviates"
        assert "changed model state without noise" in client.rejected


@pytest.mark.ci
def test_an_accountant_per_round_deviates_for_its_client_alone(tmp_path):
    _, found = recorded_federation(tmp_path / "run", flower_federation, ACCOUNTANT_PER_ROUND, rounds=2)
    at_fault = [client for client in found if client.verdict != "proved"]
    assert [client.rejected for client in at_fault] == [{joined_checks.RECOUNTED.title}]


@pytest.mark.ci
def test_steps_without_noise_between_rounds_are_named(tmp_path):
    _, found = recorded_federation(tmp_path / "run", flower_federation, PLAIN_STEPS, rounds=2)
    named = "starts with parameters that no earlier part ended with"
    (at_fault,) = (client for client in found if named in client.doubts)
    assert at_fault.verdict == "open"
    assert "the script made 3 steps of SGD on tensors of the model without privacy" in at_fault.doubts


@pytest.mark.ci
@pytest.mark.parametrize(
    ("fault", "status", "rejected", "rules"),
    [
        (NO_NOISE, ("open", "deviates"), {"steps in the logs, noise vectors"}, []),
        (TWICE_THE_RATE, ("open", "deviates"), {"sampling rate of the accountant"}, []),
        (RECORDS_FROM_SERVER, ("proved", "no-deviation-found"), set(), ["records-in-model"]),
    ],
)
def test_a_fault_of_one_round_fails_the_check_of_its_client_alone(tmp_path, fault, status, rejected, rules):
    _, found = recorded_federation(tmp_path / "run", flower_federation, fault, rounds=2)
    (at_fault,) = (client for client in found if client.exit_code)
    assert (at_fault.status, at_fault.rejected, int(at_fault.exit_code)) == (status, rejected, 1)
    assert [rule.name for rule in at_fault.audit.recording.rules] == rules
    assert {client.status for client in found if client is not at_fault} == {("proved", "no-deviation-found")}
