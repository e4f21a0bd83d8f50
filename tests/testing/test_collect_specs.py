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


def test_a_test_per_claim(pytester: pytest.Pytester, spec: str) -> None:
    ended = pytester.runpytest_subprocess("-p", "dpspec.testing.collect", "-v")
    ended.assert_outcomes(passed=3, skipped=1)
    ended.stdout.fnmatch_lines(["*release.yaml::bounds-only::one-record*PASSED*"])


def test_nothing_is_collected_unasked(pytester: pytest.Pytester, spec: str) -> None:
    pytester.runpytest_subprocess().assert_outcomes()


def test_a_claim_that_fails_says_why_without_a_traceback(pytester: pytest.Pytester, spec: str) -> None:
    broken = spec.replace("noise_multiplier: 1.0", "noise_multiplier: 0.9")
    (pytester.path / "release.yaml").write_text(broken, encoding="utf-8")
    ended = pytester.runpytest_subprocess("-p", "dpspec.testing.collect")
    ended.assert_outcomes(failed=3, skipped=1)
    ended.stdout.fnmatch_lines(["refuted: epsilon <= 3 *NOT AS EXPECTED*"])
    ended.stdout.no_fnmatch_line("*Traceback*")


def test_an_invalid_spec_is_an_error_with_its_place(pytester: pytest.Pytester, spec: str) -> None:
    (pytester.path / "release.yaml").write_text(spec.replace("steps:", "stepz:"), encoding="utf-8")
    ended = pytester.runpytest_subprocess("-p", "dpspec.testing.collect")
    ended.assert_outcomes(errors=1)
    ended.stdout.fnmatch_lines(["*release.yaml:*error*unknown key 'stepz'*did you mean 'steps'*"])
