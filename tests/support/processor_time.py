"""Processor time of each test, and the failure of tests without a marker that take more than their share.

$ pytest --ci --processor-time costs.tsv     # seconds, file and test of all tests, most expensive first
"""

import importlib
import os
import resource
import time
import warnings
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

#: The most processor seconds of a test without a marker, and of a fixture that several tests share, on a processor
#: that takes :data:`_REFERENCE` seconds for :func:`_reference_seconds`. Slower ones may take longer in proportion.
MOST_SECONDS, MOST_SHARED_SECONDS = 2.0, 6.0

#: Median of 200 references on the two cores for which the README states the duration of the suite, otherwise idle.
_REFERENCE = 0.018

#: Imported before the first test, because otherwise the first test that needs one would pay for it.
_LIBRARIES = ("jsonschema", "mpmath", "opacus", "rich.console", "scipy.stats", "sklearn.datasets", "torch._dynamo")

#: A reference is measured again after as many seconds, since other work on a shared machine comes and goes.
_INTERVAL = 20.0


def processor_seconds() -> float:
    """Return the user and system seconds of this process and of its children that ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _reference_seconds() -> float:
    """Return the processor seconds of a fixed computation: half of it in Python, half of it in NumPy."""
    began = processor_seconds()
    counts: dict[int, int] = defaultdict(int)
    for number in range(60_000):
        counts[number * 7919 % 1009] += number
    values = np.linspace(0.0, 1.0, 150_000)
    for _ in range(4):
        values = np.sort(np.sin(values) + values[::-1])
    return processor_seconds() - began


class ProcessorTime:
    """Measures tests and shared fixtures; fails those without a marker that exceed the limits.

    Args:
        limited: Whether a test above its limit fails.
        report: The file of the table of all tests; None writes none.
        examples: The number of drawn examples of a test, relative to the default run, for which the limits are.
    """

    def __init__(self, limited: bool, report: Path | None, examples: float = 1.0) -> None:
        self._examples = examples
        self._limited = limited
        self._report = report
        self._shared = 0.0
        self._slowness = 1.0
        self._measured = float("-inf")
        self.seconds: dict[str, float] = {}

    def pytest_collection_finish(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for library in _LIBRARIES if self._limited else ():
                importlib.import_module(library)

    def slowness(self) -> float:
        """Return the ratio of the present reference to the one of the README's machine, at least 1."""
        if time.monotonic() - self._measured > _INTERVAL:
            self._slowness = max(1.0, _reference_seconds() / _REFERENCE)
            self._measured = time.monotonic()
        return self._slowness

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> object:
        if fixturedef.scope == "function":
            return (yield)
        before, shared = processor_seconds(), self._shared
        try:
            return (yield)
        finally:
            self._shared = shared + processor_seconds() - before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._shared = 0.0
        before = processor_seconds()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = processor_seconds() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        before = processor_seconds()
        outcome = yield
        own, shared = processor_seconds() - before, self._shared
        marked = item.get_closest_marker("ci") or item.get_closest_marker("slow")
        if self._limited and not marked:
            # the suites of dpspec.testing run whole audits of each plugin, and no class can mark one of their tests
            most = MOST_SHARED_SECONDS if getattr(item, "cls", None) is not None else MOST_SECONDS
            drawn = self._examples if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) else 1.0
            for seconds, limit, what in (
                (own, most * drawn, "the test"),
                (shared, MOST_SHARED_SECONDS, "its shared fixtures"),
            ):
                if seconds > limit and seconds > limit * self.slowness():
                    pytest.fail(
                        f"{what} took {seconds:.1f} processor seconds; at most {limit:g} without the marker ci "
                        f"(times {self.slowness():.2f} on this machine). Feed results instead of training, or mark it.",
                        pytrace=False,
                    )
        return outcome

    def pytest_sessionfinish(self) -> None:
        if self._report is not None and self.seconds:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "")
            path = self._report.with_name(self._report.name + (f".{worker}" if worker else ""))
            rows = sorted(self.seconds.items(), key=lambda row: -row[1])
            path.write_text("".join(f"{seconds:.3f}\t{name}\n" for name, seconds in rows), encoding="utf-8")
