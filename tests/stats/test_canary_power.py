from pathlib import Path

import pytest

from dpspec.stats.attacks import canary_power, guess_counts

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "attack-power.md"


@pytest.mark.parametrize("kind", canary_power.MEASURED)
def test_quoted_bounds_are_those_of_the_documents(kind: str) -> None:
    final_model, iterates = (f"{median:.2f} ({most:.2f})" for median, most in canary_power.MEASURED[kind])
    assert f"`{kind}` {final_model} / {iterates}" in " ".join(PAGE.read_text(encoding="utf-8").split())
    for all_iterates in (False, True):
        median, most = canary_power.MEASURED[kind][all_iterates]
        text = canary_power.measured(kind, all_iterates=all_iterates)
        assert f"a median of {median:.2f} of a proved epsilon of 2.06, at most {most:.2f}" in text
        assert median <= most <= canary_power.MEASURED_EPSILON
        strongest = max(values[all_iterates][0] for values in canary_power.MEASURED.values())
        assert (f" canaries: {strongest:.2f}" in text) == (median < strongest)


def test_the_largest_epsilon_is_the_bound_of_correct_guesses() -> None:
    most = canary_power.largest_epsilon(500, 1e-5, 0.95)
    assert f"{most:.2f}" == "5.11"
    guesses, correct = guess_counts.counts(["0" * 250 + "1" * 250], guess_counts.blind(500))
    assert guess_counts.epsilon_lower(500, guesses, correct, 1e-5, 0.95) == most
    assert "not measured" in canary_power.measured("crafted", all_iterates=False)
