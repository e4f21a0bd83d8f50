"""One check for each assumption, from all of its tests."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.checked_runs import checked
from support.facts_only import run_with
from support.recordings import Recordings

from dpspec.contract import Check
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import noise_tests, sampling, table
from dpspec.stats.conformance.evidence import NoiseSums, RunEvidence
from dpspec.stats.conformance.measurement import LEVEL, Measurement
from dpspec_recording.judge.combined_checks import combined, corrected
from dpspec_recording.observers.noise.noise import Noise
from dpspec_recording.outcomes.conditions import TESTED
from dpspec_recording.outcomes.issue import Issue, checks_of, with_tests
from dpspec_recording.watching import noise_statistics


def test_a_recording_has_at_most_seventeen_kinds_of_checks() -> None:
    assert {row.assumption for row in table.TABLE if row.observed == "reported"} <= {*TESTED}
    assert len(TESTED) <= 17


def test_a_run_has_one_check_for_each_assumption(recordings: Recordings) -> None:
    found = checked(recordings["flat"], epsilon=100.0)
    names = [check.assumption for check in found.checks]
    assert found.fine
    assert len(names) == len({*names}) <= 17
    assert {*names} == {test.assumption for test in found.tests} <= {*TESTED}
    assert len(found.tests) > 30
    for name in ("sampling", "noise-scale", "independent-noise", "noise-law"):
        (check,) = [check for check in found.checks if check.assumption == name]
        number = sum(test.assumption == name for test in found.tests)
        assert f"{number} of {number} tests pass" in check.note
        assert check.detectable is not None


def result_of(assumption: str, p_value: float, title: str = "name", *, exact: bool = False, **values: Any) -> Issue:
    of_test = {name: values.pop(name) for name in ("limit_of",) if name in values}
    test = f"{title}, exact" if exact else title
    check = Check(assumption=assumption, test=test, p_value=p_value, observed="reported", **values)
    return Issue(name="test", condition=assumption, level="deviates", text=title, test=check, is_exact=exact, **of_test)


def test_p_values_count_the_statistical_tests_alone() -> None:
    tests = [result_of("noise-law", 1e-9), result_of("noise-law", 0.6), result_of("noise-law", 1.0, exact=True)]
    tests += [result_of("sampling", 1e-9), result_of("clipping", 1.0), result_of("clipping", 1.0)]
    assert [test.check.p_value for test in corrected(tests)] == [2e-9, 1.0, 1.0, 1e-9, 1.0, 1.0]
    assert [test.check.p_value for test in combined(corrected(tests))] == [2e-9, 1e-9, 1.0]


def test_a_violated_exact_test_rejects_alone() -> None:
    tests = [
        result_of("sampling", 0.3),
        result_of("sampling", 0.0, "steps", exact=True, declared=0.0, measured=4.0, note="few"),
    ]
    (check,) = checks_of(combined(corrected(tests)))
    assert (check.p_value, check.test, check.measured) == (0.0, "steps, exact", 4.0)
    tests[1] = replace(tests[1], test=replace(tests[1].check, p_value=1.0))
    assert combined(corrected(tests))[0].check.test == "name"
    assert check.note == "1 of 2 tests pass; few"


def test_a_check_names_all_rejected_tests_with_their_values() -> None:
    tests = [
        result_of("clipping", 0.0, "a", exact=True, measured=7.0),
        result_of("clipping", 1.0, "b", exact=True),
        result_of("clipping", 0.0, "c", exact=True, measured=3.0),
        result_of("clipping", 0.0, "d", exact=True, measured=5.0, privacy="data-dependent"),
    ]
    (test,) = combined(corrected(tests))
    assert (test.text, test.check.test, test.check.measured) == ("a; c; d", "a; c; d, exact", 7.0)
    assert test.check.note == "1 of 4 tests pass; also c: reported 3"
    (alone,) = combined(corrected(tests[:1]))
    assert alone == tests[0]


def test_the_limit_is_the_largest_of_the_tests_of_all_steps() -> None:
    limits = [("all-steps", 0.1), ("all-steps", 0.2), ("one-step", 5.0), ("other-quantity", 0.5)]
    tests = [result_of("noise-law", 0.5, detectable=limit, limit_of=limit_of) for limit_of, limit in limits]
    (check,) = checks_of(combined(tests))
    assert check.detectable == 0.2
    assert "4 of 4 tests pass (limits of other quantities: up to 50%)" in check.note
    unlimited = [replace(test, test=replace(test.check, detectable=None)) for test in tests]
    assert combined(unlimited)[0].check.detectable is None


RATE = 0.05

LIMITS: dict[str, Callable[[], Measurement]] = {
    **{f"scale of {n}": lambda n=n: noise_tests.two_sided(n, n) for n in (2, 30, 1000, 10**6)},
    **{f"layer of {n}": lambda n=n: noise_tests.quietest({"a": (n, n)}, 30)[1] for n in (5, 200, 10**5)},
    **{f"coordinate of {n} steps": lambda n=n: noise_tests.least_coordinate(n, n, 700) for n in (30, 1000)},
    **{f"rate of {n}": lambda n=n: sampling.inclusions(int(n * RATE), n, RATE) for n in (2000, 10**5, 10**7)},
    **{
        f"sizes of {n} steps": lambda n=n: sampling.evenness(n, 50 * n, 2548 * n, TruncatedSize(1000, RATE, 1000))
        for n in (60, 1000)
    },
    **{
        f"inclusions of {n} records": lambda n=n: sampling.record_spread(n, 5 * n, 30 * n, 100, RATE)
        for n in (300, 10**5)
    },
    **{f"overlaps of {n}": lambda n=n: sampling.overlap(1, int(n * RATE), n, RATE) for n in (1500, 10**5)},
    **{f"repeats among {n}": lambda n=n: noise_statistics.repeats(0, 1e-3 * n, n, 1, "") for n in (500, 10**5)},
    **{f"shares of {37 * n}": lambda n=n: noise_statistics.shares([n] * 42, 1e-6, 1, "") for n in (30, 10**4)},
    **{f"extreme of {n}": lambda n=n: noise_statistics.extreme(4.0, n, 1e-3, "") for n in (10**4, 10**9)},
    **{f"spread of {n}": lambda n=n: noise_statistics.spread(n, n, "") for n in (60, 5000)},
    **{f"excess of {n}": lambda n=n: noise_statistics.excess(n, n, "") for n in (1, 60, 5000)},
    "lags": lambda: noise_statistics.correlations(np.random.default_rng(1).standard_normal((60, 96)), "", "")[1],
}


@pytest.mark.parametrize("number", [2, 5, 500])
@pytest.mark.parametrize("name", LIMITS)
def test_corrected_limits_are_above_the_limits_at_the_smaller_level(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = LIMITS[name]().detectable
    for module in (noise_tests, sampling, noise_statistics):
        monkeypatch.setattr(module, "LEVEL", LEVEL / number)
    sampling._detectable_overlap.cache_clear()
    exact = LIMITS[name]().detectable
    sampling._detectable_overlap.cache_clear()
    tests = [result_of("sampling", 0.5, detectable=limit)] * number
    corrected_limit = corrected(tests)[0].check.detectable
    assert limit is not None
    assert corrected_limit is not None
    assert exact is None or limit <= exact <= corrected_limit <= limit * (1.0 + math.log(number) / 13.8)


def dependent_rows() -> Iterator[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(5)
    for steps, width in ((12, 40), (60, 96), (300, 96)):
        noise = generator.standard_normal((steps, width))
        for lag in (1, 4):
            for share in (1.0, 0.9, 0.6, 0.4, 0.25):
                rows = noise.copy()
                rows[lag:] = share * noise[:-lag] + math.sqrt(1.0 - share * share) * noise[lag:]
                yield rows
                yield -np.sign(share - 0.5) * rows
        pair = noise.copy()
        pair[7] = -pair[3]
        yield pair


def test_normalized_products_find_what_raw_products_find() -> None:
    """The reported check of backends, on the rows of a recording, has no smaller p-values beyond a factor."""
    smaller = 0
    for rows in dependent_rows():
        sums = NoiseSums.of(np.square(rows).sum(axis=1), rows, rows.shape[1])
        raw = [c for c in table.of_runs([], [RunEvidence(noise_log=sums)]) if c.assumption == "independent-noise"]
        run = replace(run_with({}, ended=False, columns={"noise_squares": np.nan}), rows=rows)
        p_value = min(test.check.p_value for test in with_tests(Noise.judge(None, run)))
        assert p_value <= max(1e-12, 4.0 * min(check.p_value for check in raw))
        smaller += p_value < 1e-9
    assert smaller > 20
