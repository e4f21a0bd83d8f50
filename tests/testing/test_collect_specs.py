"""Specs as tests, by the pytest plugin that has to be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SPEC = Path(__file__).parents[2] / "specs" / "bounds-only.yaml"


@pytest.fixture
def spec(pytester: pytest.Pytester) -> str:
    text = SPEC.read_text(encoding="utf-8")
    (pytester.path / "release.yaml").write_text(text, encoding="utf-8")
    (pytester.path / "other.yaml").write_text("a: 1\n", encoding="utf-8")
    return text


def test_a_test_per_claim_and_one_that_fails_says_why_without_a_traceback(pytester: pytest.Pytester, spec: str) -> None:
    broken = spec.replace("noise_multiplier: 1.0", "noise_multiplier: 0.9").replace("bounds-only", "broken")
    (pytester.path / "worse.yaml").write_text(broken, encoding="utf-8")
    ended = pytester.runpytest_subprocess("-p", "dpspec.testing.collect", "-v")
    ended.assert_outcomes(passed=3, failed=3, skipped=2)
    ended.stdout.fnmatch_lines(["*release.yaml::bounds-only::one-record*PASSED*"])
    ended.stdout.fnmatch_lines(["*worse.yaml::broken::one-record*FAILED*"])
    ended.stdout.fnmatch_lines(["refuted: epsilon <= 3 *NOT AS EXPECTED*"])
    ended.stdout.no_fnmatch_line("*Traceback*")


def test_nothing_is_collected_unasked(pytester: pytest.Pytester, spec: str) -> None:
    pytester.runpytest_subprocess().assert_outcomes()


def test_an_invalid_spec_is_an_error_with_its_place(pytester: pytest.Pytester, spec: str) -> None:
    (pytester.path / "release.yaml").write_text(spec.replace("steps:", "stepz:"), encoding="utf-8")
    ended = pytester.runpytest_subprocess("-p", "dpspec.testing.collect")
    ended.assert_outcomes(errors=1)
    ended.stdout.fnmatch_lines(["*release.yaml:*error*unknown key 'stepz'*did you mean 'steps'*"])
