"""Ask every public question about privacy losses over the whole admitted range: ``python tests/campaigns/extremes.py``.

Draws compositions of all kinds of steps and questions about them, log-uniform, for ``--seconds``. A finding is an
exception, a warning, an answer after more than 100 seconds of processor time, or a wrong one: outside of its range, or
in contradiction to an exact value or to another answer.

The seed and the number determine a case: ``--seed 3 --only 17`` repeats and prints it.
"""

import argparse
import math
import signal
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import mpmath
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.extreme_pairs import Question, exact_delta, losses, questions

from dpspec.accounting import Interval, PrivacyLoss, tradeoff_bounds

#: Seconds of processor time after which a question has no answer.
LONGEST = 100.0

#: Cases per seed.
BATCH = 40

#: The relative error allowed between two answers, besides their intervals.
ROUNDING = 1e-9

#: Levels of a whole curve that are read.
LEVELS = (1e-6, 0.1, 0.5)


class LateError(Exception):
    """A question without an answer within ``LONGEST`` seconds."""


def is_sane(answer: Interval, low: float, high: float) -> bool:
    """Whether an interval has ordered ends in [low, high], up to rounding; not if an end is NaN."""
    return low * (1.0 - ROUNDING) - 1e-300 <= answer.lower <= answer.upper <= high * (1.0 + ROUNDING)


def check_question(loss: PrivacyLoss, question: Question) -> list[str]:
    """Asks one question, and others whose answers it implies; returns contradictions."""
    name, ask, low, high = question
    answer = ask(loss)
    if not is_sane(answer, low, high):
        return [f"{name} is {answer}"]
    kind, value = name[: name.index("(")], float(name[name.index("(") + 1 : -1] or 0.0)
    if kind == "epsilon":
        return check_epsilon(loss, value, answer)
    if kind in {"delta", "advantage"}:
        return check_delta(loss, value, answer)
    if kind == "rero" and answer.lower > (loss.advantage(width=1e-2).upper + value) * (1.0 + ROUNDING):
        return [f"{name} from {answer.lower!r} exceeds the advantage by more than kappa"]
    return []


def check_epsilon(loss: PrivacyLoss, delta: float, answer: Interval) -> list[str]:
    """The delta at either end of an epsilon."""
    wrong = []
    if answer.upper < 1e300 and loss.delta(answer.upper * (1.0 + ROUNDING)).lower > delta * (1.0 + ROUNDING):
        wrong.append(f"epsilon({delta!r}) up to {answer.upper!r}, whose delta is larger")
    if 0.0 < answer.lower < 1e300 and loss.delta(answer.lower * (1.0 - ROUNDING)).upper < delta * (1.0 - ROUNDING):
        wrong.append(f"epsilon({delta!r}) from {answer.lower!r}, whose delta is smaller")
    return wrong


def check_delta(loss: PrivacyLoss, epsilon: float, answer: Interval) -> list[str]:
    """The exact delta of one step, and the delta of twice as many steps."""
    (pair, steps), *others = loss.phases
    if loss.compose(2).delta(epsilon).upper < answer.lower * (1.0 - ROUNDING):
        return [f"delta({epsilon!r}) from {answer.lower!r}, twice the steps have a smaller one"]
    if others or steps > 1 or loss.direction == "both":
        return []
    with mpmath.workdps(400):
        exact = exact_delta(pair, epsilon, loss.direction)
    if exact is None:
        return []
    slack = mpmath.mpf(ROUNDING)
    is_inside = answer.lower <= exact * (1 + slack) + mpmath.mpf(1e-300)
    is_inside &= answer.upper >= exact * (1 - slack) - mpmath.mpf(1e-300)
    return [] if is_inside else [f"delta({epsilon!r}) is {answer}, not {mpmath.nstr(exact, 17)}"]


def check_curve(loss: PrivacyLoss, question: Question) -> list[str]:
    """The whole trade-off curve of the ``loss``, next to single points of it."""
    curve = tradeoff_bounds(loss, nodes=32)
    wrong = [f"the curve at {level} is {curve(level)}" for level in LEVELS if not is_sane(curve(level), 0.0, 1 - level)]
    point = loss.tradeoff(0.1)
    if max(point.lower, curve(0.1).lower) > min(point.upper, curve(0.1).upper) + ROUNDING:
        wrong.append(f"the curve at 0.1 is {curve(0.1)}, the point {point}")
    return wrong


def check_deltas(loss: PrivacyLoss, question: Question) -> list[str]:
    """Epsilons at several deltas, which fall, and baselines of reconstruction, whose success grows."""
    epsilons = loss.epsilons([1e-12, 1e-6, 0.1], width=1e-2)
    gammas = loss.reros([1e-6, 1e-3, 0.5], width=1e-2)
    wrong = [] if all(is_sane(answer, 0.0, math.inf) for answer in epsilons) else [f"epsilons are {epsilons}"]
    for pair, answers in (("epsilons", epsilons[::-1]), ("reros", gammas)):
        for less, more in pairwise(answers):
            if less.lower > more.upper * (1.0 + ROUNDING):
                wrong.append(f"{pair} are {answers}")
    return wrong


Check: TypeAlias = Callable[[PrivacyLoss, Question], list[str]]

#: Checks, each with its number among ten cases.
CHECKS: tuple[tuple[Check, int], ...] = ((check_question, 8), (check_curve, 1), (check_deltas, 1))


@dataclass
class Tally:
    """What a campaign found, by the kind of the check."""

    counts: Counter[str] = field(default_factory=Counter)
    slow: list[tuple[float, str]] = field(default_factory=list)
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def run(self, case: str, check: Check, loss: PrivacyLoss, question: Question) -> None:
        """Runs one ``check`` with its limit of time, and adds what it found."""
        began = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST, 1.0)
        try:
            with warnings.catch_warnings(action="error"):
                messages = check(loss, question)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            messages = [f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}: {error}"]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        for message in messages:
            self.findings[message[:60]].append(f"{case}\n        {message}")
        self.counts[check.__name__] += 1
        self.slow = sorted([(time.process_time() - began, case), *self.slow], reverse=True)[:10]


def run_batch(number: int, tally: Tally, ends: float, only: int | None = None) -> None:
    """Runs the cases of one seed until the time ``ends``, or ``only`` one of them."""
    index = -1

    @seed(number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(losses(), questions())
    def run_case(loss: PrivacyLoss, question: Question) -> None:
        nonlocal index
        index += 1
        if time.monotonic() > ends or (only is not None and index != only):
            return
        checks = [check for check, count in CHECKS for _ in range(count)]
        check = checks[(index + number) % len(checks)]
        case = f"--seed {number} --only {index}: {check.__name__} {question[0]} of {loss}"
        tally.run(case, check, loss, question)
        if only is not None:
            print(case)

    run_case()


def stop_late(signum: int, frame: FrameType | None) -> None:
    """Ends a question that takes too long."""
    raise LateError(f"no answer in {LONGEST:.0f} s")


def main() -> int:
    """Runs the campaign and prints its counts, slowest cases and findings; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="the time after which no case begins")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one case of --seed and print it")
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, stop_late)
    tally, number, began = Tally(), options.seed, time.monotonic()
    if options.only is not None:
        run_batch(number, tally, math.inf, options.only)
    while options.only is None and time.monotonic() < began + options.seconds:
        run_batch(number, tally, began + options.seconds)
        number += 1
    for seconds, case in tally.slow:
        print(f"{seconds:7.1f} s  {case}")
    for cases in tally.findings.values():
        print(f"{len(cases)} x {cases[0]}")
    checked = ", ".join(f"{count} {name}" for name, count in tally.counts.items())
    print(f"{checked}; {sum(map(len, tally.findings.values()))} findings, {time.monotonic() - began:.0f} s")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
