"""The tests of dpspec's own attack methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dpspec.contract import FrozenMap, Json
from dpspec.contract.attacks import EvidenceTest
from dpspec.stats.attacks import guess_counts, one_run, sequential, thresholds
from dpspec.stats.attacks.curve_lines import Point


def _false_positive_rate(false_positives: int, absent: int) -> float:
    """No false positive counts as one: fewer than one in ``absent`` are not observable."""
    return max(1, false_positives) / max(1, absent)


def _guess_rates(canaries: int, guesses: int, correct: int) -> tuple[float, float]:
    """False- and true-positive rate of guesses; half of the guesses and canaries count as present."""
    return _false_positive_rate(guesses - correct, canaries), correct / max(1, canaries)


class OneRun(EvidenceTest):
    """Counts of canaries, guesses and correct guesses."""

    def is_possible(self, statistics: FrozenMap) -> bool:
        return bool(statistics["correct"] <= statistics["guesses"] <= statistics["canaries"])

    def p_value(self, statistics: FrozenMap, points: Sequence[Point]) -> float:
        return one_run.curve_p_value(*_guesses(statistics), points)

    def epsilon_lower(self, statistics: FrozenMap, delta: float, confidence: float) -> float:
        return one_run.epsilon_lower(*_guesses(statistics), delta, confidence)

    def perfect(self, statistics: FrozenMap) -> Mapping[str, Json]:
        return {**statistics, "correct": statistics["guesses"]}

    def rates(self, statistics: FrozenMap) -> Sequence[tuple[float, float]]:
        return [_guess_rates(*_guesses(statistics))]


class OneRunLadder(OneRun):
    """Lists of guesses and correct guesses."""

    def is_possible(self, statistics: FrozenMap) -> bool:
        canaries, guesses, correct = _guesses(statistics)
        rising = all(a < b for a, b in pairwise(guesses)) and len(guesses) == len(correct)
        return rising and all(right <= count <= canaries for right, count in zip(correct, guesses, strict=True))

    def p_value(self, statistics: FrozenMap, points: Sequence[Point]) -> float:
        return guess_counts.p_value(*_guesses(statistics), points)

    def rejects(self, statistics: FrozenMap, points: Sequence[Point], level: float) -> bool:
        return guess_counts.p_value(*_guesses(statistics), points, level) <= level

    def epsilon_lower(self, statistics: FrozenMap, delta: float, confidence: float) -> float:
        return guess_counts.epsilon_lower(*_guesses(statistics), delta, confidence)

    def rates(self, statistics: FrozenMap) -> Sequence[tuple[float, float]]:
        canaries, guesses, correct = _guesses(statistics)
        return [_guess_rates(canaries, *counts) for counts in zip(guesses, correct, strict=True)]


def _guesses(statistics: FrozenMap) -> tuple[Json, Json, Json]:
    return statistics["canaries"], statistics["guesses"], statistics["correct"]


class ManyRun(EvidenceTest):
    """Counts of runs with and without the canary, and of positives among both."""

    def is_possible(self, statistics: FrozenMap) -> bool:
        present, absent, true_positives, false_positives = _positives(statistics)
        return true_positives <= present and false_positives <= absent

    def p_value(self, statistics: FrozenMap, points: Sequence[Point]) -> float:
        return thresholds.fixed_curve_p_value(*_positives(statistics), points)

    def epsilon_lower(self, statistics: FrozenMap, delta: float, confidence: float) -> float:
        return thresholds.fixed_epsilon_lower(*_positives(statistics), delta, confidence)

    def perfect(self, statistics: FrozenMap) -> Mapping[str, Json]:
        return {**statistics, "true_positives": statistics["present"], "false_positives": 0}

    def rates(self, statistics: FrozenMap) -> Sequence[tuple[float, float]]:
        present, absent, true_positives, false_positives = _positives(statistics)
        return [(_false_positive_rate(false_positives, absent), true_positives / max(1, present))]


def _positives(statistics: FrozenMap) -> tuple[int, int, int, int]:
    present, absent = statistics["present"], statistics["absent"]
    return present, absent, statistics["true_positives"], statistics["false_positives"]


class ManyRunRanked(EvidenceTest):
    """Inclusion bits by ascending score."""

    def is_possible(self, statistics: FrozenMap) -> bool:
        return True

    def p_value(self, statistics: FrozenMap, points: Sequence[Point]) -> float:
        return thresholds.p_value(statistics["outcomes"], points)

    def epsilon_lower(self, statistics: FrozenMap, delta: float, confidence: float) -> float:
        return thresholds.epsilon_lower(statistics["outcomes"], delta, confidence)

    def perfect(self, statistics: FrozenMap) -> Mapping[str, Json]:
        return {"outcomes": "".join(sorted(statistics["outcomes"]))}

    def rates(self, statistics: FrozenMap) -> Sequence[tuple[float, float]]:
        return _ranked_rates(statistics["outcomes"])


class ManyRunSequential(EvidenceTest):
    """Inclusion bits and scores, both in the order of the runs."""

    def is_possible(self, statistics: FrozenMap) -> bool:
        return len(statistics["coins"]) == len(statistics["scores"]) <= sequential.MOST_RUNS

    def p_value(self, statistics: FrozenMap, points: Sequence[Point]) -> float:
        return sequential.p_value(statistics["coins"], statistics["scores"], points)

    def epsilon_lower(self, statistics: FrozenMap, delta: float, confidence: float) -> float:
        return sequential.epsilon_lower(statistics["coins"], statistics["scores"], delta, confidence)

    def perfect(self, statistics: FrozenMap) -> Mapping[str, Json]:
        return {**statistics, "scores": tuple(map(int, statistics["coins"]))}

    def rates(self, statistics: FrozenMap) -> Sequence[tuple[float, float]]:
        runs = sorted(zip(statistics["scores"], (-int(bit) for bit in statistics["coins"]), strict=True))
        return _ranked_rates("".join(str(-bit) for _, bit in runs))


def _ranked_rates(outcomes: str) -> list[tuple[float, float]]:
    """The rates above thresholds that the 1, 2, 4, ... highest scores pass."""
    present, absent = max(1, outcomes.count("1")), outcomes.count("0")
    tops = [outcomes[-(2**i) :] for i in range(len(outcomes).bit_length()) if 2**i < len(outcomes)]
    return [(_false_positive_rate(top.count("0"), absent), top.count("1") / present) for top in tops]
