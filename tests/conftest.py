"""Options and skips that hold for every test."""

from __future__ import annotations

import os
import signal
import sys

import hypothesis
import pytest


def pytest_configure(config: pytest.Config) -> None:
    # What is started in the background ignores Ctrl-C, and so does all that it starts; tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["DPSPEC_KEPT_BOUNDS"] = "off"  # a test that patches what computes bounds must see them computed
    if not config.getoption("--run-slow"):
        # A change fails for what it does, not for its luck: examples are new ones by hand, with --run-slow.
        hypothesis.settings.register_profile("every-change", derandomize=True, deadline=None)
        hypothesis.settings.load_profile("every-change")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--run-slow"):
        skip = pytest.mark.skip(reason="takes minutes; run with --run-slow")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy:
        import torch

        if not torch.cuda.is_available():
            for item in needy:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def nothing_counted_yet() -> None:
    """The counting mechanism's account is of one process: what another file's tests ran in it is not this test's."""
    counting = sys.modules.get("support.counting")
    if counting is not None:
        counting.RAN.clear()
        counting.HOOKS.clear()
