"""Five clients over ten rounds in one recorded script: honest, and with faults of one client."""

import pytest
from support.federated_clients import (
    ACCOUNTANT_PER_ROUND,
    PLAIN_STEPS,
    STATE_WITHOUT_NOISE,
    federation,
    recorded_federation,
)

from dpspec.accounting import PrivacyLoss
from dpspec_recording.judge import joined_checks

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.slow
def test_each_client_of_a_sound_federation_is_proved_at_the_total_of_all_rounds(tmp_path):
    clients, found = recorded_federation(tmp_path / "run", federation, "", rounds=10)
    assert [(client.verdict, client.fine, client.run.steps) for client in found] == [("proved", True, 100)] * 5
    total = PrivacyLoss.of_steps([(1.0, 0.1, 100)]).epsilon(1e-5).upper
    for client, check in zip(clients, found, strict=True):
        upper = check.costs[1].interval.upper
        assert upper == pytest.approx(total, rel=1e-3)
        assert upper < client.accountant.get_epsilon(1e-5)
        (statement,) = (one for one in check.assumptions if one.name == "server-weights")
        assert statement.status == "declared"


@pytest.mark.ci
def test_a_state_that_was_trained_without_noise_leaves_the_server_open(tmp_path):
    _, found = recorded_federation(tmp_path / "run", federation, STATE_WITHOUT_NOISE, rounds=2)
    assert found[0].verdict == "open"
    assert "the script also made steps without privacy: 3 steps of SGD" in found[0].doubts


@pytest.mark.ci
def test_an_accountant_per_round_deviates_for_its_client_alone(tmp_path):
    _, found = recorded_federation(tmp_path / "run", federation, ACCOUNTANT_PER_ROUND, rounds=2)
    assert found[0].status[1] == "deviates"
    assert found[0].rejected == {joined_checks.RECOUNTED.title}
    assert [client.verdict for client in found[1:]] == ["proved"] * 4


@pytest.mark.ci
def test_steps_without_noise_between_rounds_are_named(tmp_path):
    _, found = recorded_federation(tmp_path / "run", federation, PLAIN_STEPS, rounds=2)
    assert found[0].verdict == "open"
    assert "starts with parameters that no earlier part ended with" in found[0].doubts
    assert "the script made 3 steps of SGD on tensors of the model without privacy" in found[0].doubts
