"""The fault campaign in small: a few faults, short trials; by hand, in full: ``python tests/campaigns/faults.py``."""

from __future__ import annotations

import pytest
from campaigns import faults

#: What is tried on every change; the others take longer, and run with --run-slow.
QUICK = ("ctrl-c", "full")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory):
    return faults.Bench(tmp_path_factory.mktemp("faults"), steps=20, runs=3, times=1, seed=1, warm=False)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in faults.FAULTS]
)
def test_a_run_survives(bench, name):
    try:
        row = faults.FAULTS[name](bench)
    except faults.NotTriedError as reason:
        pytest.skip(str(reason))
    assert row.wrong == []


def test_the_table_tells_what_was_not_tried():
    row = faults.Row("a fault", saw="error: x", codes=[2, 2], kept="1 of 3", again="exit 0, identical")
    shown = faults.table([("full", row), ("clock", "no compiler")])
    assert "| a fault | error: x | 2 | 1 of 3 | exit 0, identical | `python tests/campaigns/faults.py full` |" in shown
    assert "| clock | not tried: no compiler | | | | `python tests/campaigns/faults.py clock` |" in shown
