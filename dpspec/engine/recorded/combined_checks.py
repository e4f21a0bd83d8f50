"""One check for each assumption of a recorded run, combined from all tests of this assumption.

A violated exact test rejects. Otherwise p = min(1, m min p) for the m statistical tests (Bonferroni).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpspec.contract import Check
from dpspec.decimals import upper
from dpspec.stats.conformance.measurement import LEVEL

#: The kinds of checks with statistical tests, and all kinds.
_STATISTICAL = ("sampling", "noise-scale", "per-layer-noise", "independent-noise", "noise-law")
KINDS = (
    *("steps", *_STATISTICAL, "clipping", "unmixed-batches", "secret-randomness", "update", "update-rule"),
    *("gradient-parameters", "model-state", "data-independent-hyperparameters", "accounting", "canaries"),
    "nothing-unseen",
)

#: The end of an exact test's name, and the separator of names.
_EXACT, SEPARATOR = ", exact", "; "

#: Words of tests that find faults of one step, and of tests of other quantities than the check's: the variation of
#: batches, and one coordinate. Their limits are larger.
_SINGLE = "each step"
_OTHER_QUANTITY = (
    *("variance of", "records in common", "chi-square of the quietest coordinate"),
    "largest absolute value of all noise",
)

#: The maximum number of rejected tests whose values a check lists.
_MOST = 4


def corrected(tests: Sequence[Check]) -> tuple[Check, ...]:
    """Multiply the p-value of each statistical test by the number m of such tests of its assumption.

    A detection limit at level L grows at most in proportion to ln(1 / L), which bounds the limit at 1e-6 / m.
    """
    numbers = Counter(test.assumption for test in tests if _is_statistical(test))
    return tuple(_of_several(test, numbers[test.assumption]) if _is_statistical(test) else test for test in tests)


def _of_several(test: Check, number: int) -> Check:
    factor = 1.0 + math.log(number) / -math.log(LEVEL)
    limit = None if test.detectable is None else factor * test.detectable
    return replace(test, p_value=min(1.0, number * test.p_value), detectable=limit)


def combined(tests: Iterable[Check]) -> tuple[Check, ...]:
    """The checks of :func:`corrected` tests, one for each assumption.

    A check has the values of its most surprising test, and names all rejected ones. Its ``detectable`` is the largest
    limit of the tests of its quantity over all steps. If another test over all steps has a larger limit, the note has
    it.
    """
    by_name: dict[str, list[Check]] = {}
    for test in tests:
        by_name.setdefault(test.assumption, []).append(test)
    return tuple(_combined(same) if len(same) > 1 else same[0] for same in by_name.values())


def _is_statistical(test: Check) -> bool:
    return test.assumption in _STATISTICAL and not test.test.endswith(_EXACT)


def _is_single(test: Check) -> bool:
    return _SINGLE in test.note or _SINGLE in test.test


def _combined(tests: Sequence[Check]) -> Check:
    by_surprise = sorted(tests, key=lambda t: (t.p_value, t.test.endswith(_EXACT), t.observed != "measured"))
    bad = [test for test in by_surprise if test.p_value <= LEVEL]
    worst = by_surprise[0]
    names = dict.fromkeys(test.test.removesuffix(_EXACT) for test in bad or [worst])
    exact = all(test.test.endswith(_EXACT) for test in bad or tests)
    limits = [(test.detectable, test.test) for test in tests if test.detectable is not None and not _is_single(test)]
    limit = max((size for size, name in limits if not name.startswith(_OTHER_QUANTITY)), default=None)
    largest = max((size for size, _ in limits), default=0.0)
    passed = f"{len(tests) - len(bad)} of {len(tests)} tests pass"
    if limit is not None and largest > limit:
        passed += f" (limits of other quantities: up to {upper(100.0 * largest, digits=2)}%)"
    further = [
        f"also {test.test.removesuffix(_EXACT)}: {test.observed} {test.measured:.4g}"
        for test in bad[1:]
        if test.measured is not None and test.privacy == "public"
    ]
    return replace(
        worst,
        test=f"{SEPARATOR.join(names)}{_EXACT if exact else ''}",
        detectable=limit,
        note="; ".join(filter(None, [passed, worst.note, *further[:_MOST]])),
    )
