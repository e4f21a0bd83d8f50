"""Options, skips and workers that hold for every test."""

import contextlib
import gc
import importlib.util
import os
import random
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

_HAS_RECORDER = importlib.util.find_spec("dpspec_recording") is not None

#: Folders and files that pytest ignores where the recorder is not installed: tests of recordings, and tests of pages,
#: many of which describe recordings. Tests of recordings in other files have the marker ``recorder``.
collect_ignore = [] if _HAS_RECORDER else ["campaigns", "docs", "integrations", "plugins/recording"]
collect_ignore_glob = [] if _HAS_RECORDER else ["cli/test_check_history.py", "e2e/test_federation_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share folders of tests among workers, where xdist is installed; ``-n``, ``--dist``, ``--pdb`` and ``-s`` win.

    Files and single tests run in this process: workers take seconds to start. Idle workers steal tests that others have
    not begun, so that none ends minutes after the rest, and most tests of a file meet what its fixtures made once.
    """
    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    one_process = option.usepdb or option.trace or option.capture == "no" or option.collectonly or option.tx
    folders = any(Path(argument.partition("::")[0]).is_dir() for argument in config.args)
    if option.numprocesses is None and folders and not one_process:
        option.numprocesses = "auto"
    if option.numprocesses:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if option.dist == "no":
            option.dist = "worksteal"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One worker per core, limited by memory: tests take up to 2 GiB. None if xdist decides."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or not hasattr(os, "sched_getaffinity"):
        return None
    gibibytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return max(1, min(len(os.sched_getaffinity(0)), gibibytes // 3))


def pytest_configure(config: pytest.Config) -> None:
    # Background processes and their children ignore Ctrl-C, which tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Commands note there which projects they have announced.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dpspec-state-")
    examples = _examples(config)
    hypothesis.settings.register_profile("examples", examples)
    hypothesis.settings.load_profile("examples")
    from support.processor_time import ProcessorTime

    report = config.getoption("--processor-time")
    drawn = examples.max_examples / _DEFAULT_EXAMPLES
    limited = config.getoption("--ci") or config.getoption("--run-slow")
    if limited or report:
        config.pluginmanager.register(ProcessorTime(limited, report and Path(report), drawn), "processor-time")


#: Drawn examples of a test in the default run.
_DEFAULT_EXAMPLES = 10


def _examples(config: pytest.Config) -> hypothesis.settings:
    """Return the number of drawn examples of a test and their choice.

    Ten are enough to fail for most mistakes, and cost a second in the dearest tests; ``--ci`` draws more. Both repeat
    theirs, so that no change fails by chance. ``--run-slow`` draws new ones, CAMPAIGN=n in the environment n of them.
    """
    slow = config.getoption("--run-slow")
    count = int(os.environ.get("CAMPAIGN", "0")) or (
        200 if slow else 50 if config.getoption("--ci") else _DEFAULT_EXAMPLES
    )
    return hypothesis.settings(derandomize=not slow, deadline=None, database=None, max_examples=count)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ci", action="store_true", help="run the tests that take several seconds, as CI does")
    parser.addoption("--run-slow", action="store_true", help="run these and the tests that take minutes")
    parser.addoption("--processor-time", metavar="FILE", help="write the processor seconds of each test to a file")
    parser.addoption("--shuffle", metavar="SEED", help="run the files, and the tests of each file, in a random order")
    parser.addoption("--other-rounding", action="store_true", help="let torch round products by the shapes of batches")


def _markers_left_out(config: pytest.Config) -> list[str]:
    """The markers of tests that the command line does not ask for."""
    recorder = [] if _HAS_RECORDER else ["recorder"]
    if config.getoption("--run-slow"):
        return recorder
    return [*recorder, "slow"] if config.getoption("--ci") else [*recorder, "ci", "slow"]


def pytest_report_header(config: pytest.Config) -> str:
    return f"markers of deselected tests: {', '.join(_markers_left_out(config)) or 'none'} (--ci, --run-slow)"


#: Tests of ``dpspec.testing`` that start a process, train, or bound many times, each one family for all mechanisms, and
#: the suite that represents them: DP-SGD's, or the one of the fastest mechanism with trials.
_FAMILIES_OF_MECHANISMS = {
    "test_bounds_are_monotone_where_declared": "TestGroup",
    "test_bounds_grow_with_groups_steps_and_rates": "TestGroup",
    "test_much_noise_hides_the_inclusion_bits": "TestGroup",
    "test_trials_are_reproducible_by_seed": "TestPreprocessing",
    "test_another_process_repeats_the_run": "TestPreprocessing",
    "test_checking_a_spec_imports_neither_torch_nor_scipy": "TestGroup",
    "test_importing_the_descriptor_is_light": "TestGroup",
}


def _represents_mechanisms(item: pytest.Item) -> bool:
    return getattr(getattr(item, "cls", None), "__name__", "") == _FAMILIES_OF_MECHANISMS.get(item.name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first_cases = set[str]()
    # of a family the first case without another marker runs on every change
    for item in sorted(items, key=_represents_mechanisms, reverse=True):
        if item.get_closest_marker("ci") or item.get_closest_marker("slow"):
            continue
        of_mechanisms = item.name in _FAMILIES_OF_MECHANISMS
        name = item.name if of_mechanisms else item.nodeid.partition("[")[0]
        if (of_mechanisms or item.get_closest_marker("family")) and name in first_cases:
            item.add_marker("ci")
        first_cases.add(name)
    markers = _markers_left_out(config)
    left_out = {item for item in items if any(map(item.get_closest_marker, markers))}
    # a skipped test would be reported three times by each worker
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    if (seed := config.getoption("--shuffle")) is not None:
        order = random.Random(seed)
        order.shuffle(items)
        places = {node: order.random() for item in items for node in (item.path, item.parent)}
        # files and classes stay together, because of their fixtures
        items.sort(key=lambda item: (places[item.path], places[item.parent]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The system's random numbers, like other seeds, are the same in each run; fixtures too.

    Not with --run-slow, and not in tests with the marker ``unrepeated``. No other part of the product differs from what
    users run.
    """
    from support.chance import repeatable

    counting = sys.modules.get("support.counting")
    if counting is not None:  # its account is of one process: what another file's tests ran in it is not this test's
        counting.RAN.clear()
        counting.HOOKS.clear()
    unrepeated = item.config.getoption("--run-slow") or item.get_closest_marker("unrepeated")
    with contextlib.nullcontext() if unrepeated else repeatable(item.path.name):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # What stands now stays to the end: the collector would go through all of it again and again, then and until then.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def recordings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The canonical recordings by name: see :mod:`support.recordings`."""
    from support.recordings import Recordings

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base
    made = Recordings(shared / "recordings", repeats=not request.config.getoption("--run-slow"))
    yield made
    made.require_unchanged()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if not session.config.getoption("--other-rounding"):
        return (yield)
    from support.other_rounding import OtherRounding

    with OtherRounding():
        return (yield)
