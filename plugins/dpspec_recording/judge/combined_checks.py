"""One check for each assumption of a recorded run, combined from all tests of this assumption.

A violated exact test rejects. Otherwise p = min(1, m min p) for the m statistical tests (Bonferroni).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpspec.decimals import upper
from dpspec.stats.conformance.measurement import LEVEL
from dpspec_recording.outcomes.conditions import CONDITIONS
from dpspec_recording.outcomes.issue import Issue

#: The maximum number of rejected tests whose values a check lists.
_MOST = 4


def corrected(tests: Sequence[Issue]) -> tuple[Issue, ...]:
    """Multiply the p-value of each statistical test by the number m of such tests of its assumption.

    A detection limit at level L grows at most in proportion to ln(1 / L), which bounds the limit at 1e-6 / m.
    """
    numbers = Counter(test.condition for test in tests if _is_statistical(test))
    return tuple(_of_several(test, numbers[test.condition]) if _is_statistical(test) else test for test in tests)


def _of_several(test: Issue, number: int) -> Issue:
    factor = 1.0 + math.log(number) / -math.log(LEVEL)
    limit = None if test.check.detectable is None else factor * test.check.detectable
    return replace(test, test=replace(test.check, p_value=min(1.0, number * test.check.p_value), detectable=limit))


def combined(tests: Iterable[Issue]) -> tuple[Issue, ...]:
    """The checks of :func:`corrected` tests, one for each assumption.

    A check has the values of its most surprising test, and names all rejected ones. Its ``detectable`` is the largest
    limit of the tests of its quantity over all steps. If another test over all steps has a larger limit, the note has
    it.
    """
    by_name: dict[str, list[Issue]] = {}
    for test in tests:
        by_name.setdefault(test.condition, []).append(test)
    return tuple(_combined(same) if len(same) > 1 else same[0] for same in by_name.values())


def _is_statistical(test: Issue) -> bool:
    return CONDITIONS[test.condition].is_statistical and not test.is_exact


def _combined(tests: Sequence[Issue]) -> Issue:
    by_surprise = sorted(tests, key=lambda t: (t.check.p_value, t.is_exact, t.check.observed != "measured"))
    bad = [test for test in by_surprise if test.check.p_value <= LEVEL]
    worst = by_surprise[0]
    titles = tuple(dict.fromkeys(test.text for test in bad or [worst]))
    title = "; ".join(titles)
    is_exact = all(test.is_exact for test in bad or tests)
    of_all_steps, of_others = (
        [t.check.detectable for t in tests if t.check.detectable is not None and t.limit_of == limit_of]
        for limit_of in ("all-steps", "other-quantity")
    )
    limit, largest = max(of_all_steps, default=None), max([*of_all_steps, *of_others], default=0.0)
    passed = f"{len(tests) - len(bad)} of {len(tests)} tests pass"
    if limit is not None and largest > limit:
        passed += f" (limits of other quantities: up to {upper(100.0 * largest, digits=2)}%)"
    further = [
        f"also {test.text}: {test.check.observed} {test.check.measured:.4g}"
        for test in bad[1:]
        if test.check.measured is not None and test.check.privacy == "public"
    ]
    check = replace(
        worst.check,
        test=f"{title}, exact" if is_exact else title,
        tests=titles,
        detectable=limit,
        note="; ".join(filter(None, [passed, worst.check.note, *further[:_MOST]])),
    )
    return replace(worst, text=title, is_exact=is_exact, test=check)
