"""A pytest plugin that notes which tests execute which lines of the product; needs ``coverage`` and one process.

    EXECUTED_LINES=FOLDER PYTHONPATH=tests python -m pytest -n 0 -p campaigns.executed_lines

FOLDER gets ``lines``, a database of coverage with contexts; JSON of each Python process that a test starts; and
``tests.json``, the tests that ran with the contexts of what they execute. The context of a line is a test, or its file
for what a fixture of several tests executes, or ``recordings`` for what makes a canonical recording. What imports
execute belongs to no test. What a process executes that is killed or forked by ``multiprocessing`` is not seen.
"""

import functools
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from campaigns.in_processes.sitecustomize import TEST, measurement

#: The context of making a canonical recording, which is the name of the fixture.
RECORDINGS = "recordings"

_ROOT = Path(__file__).parents[2]
_FOLDER = Path(os.environ["EXECUTED_LINES"])

#: Started when pytest loads the plugin, which is before it imports the product.
_measured = measurement(_FOLDER / "lines")
_measured.start()

_contexts_of: dict[str, list[str]] = {}

#: The present context, within others.
_contexts = [""]


def _switch(context: str) -> None:
    _measured.switch_context(context)
    os.environ[TEST] = context


def _within(context: str) -> Generator[None, object, object]:
    _contexts.append(context)
    _switch(context)
    try:
        return (yield)
    finally:
        _contexts.pop()
        _switch(_contexts[-1])


def pytest_configure() -> None:
    # before what the environment names: Python imports one ``sitecustomize``
    paths = [str(Path(__file__).parent / "in_processes"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_finish(session: pytest.Session) -> None:
    from support.recordings import MAKERS

    for item in session.items:
        uses_recordings = RECORDINGS in getattr(item, "fixturenames", ())
        file = item.nodeid.partition("::")[0]
        _contexts_of[item.nodeid] = [item.nodeid, file, *([RECORDINGS] if uses_recordings else [])]
    MAKERS.update({name: _making(make) for name, make in MAKERS.items()})


def _making(make: Callable[[Path], object]) -> Callable[[Path], object]:
    @functools.wraps(make)
    def noted(folder: Path) -> object:
        _switch(RECORDINGS)
        try:
            return make(folder)
        finally:
            _switch(_contexts[-1])

    return noted


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _within(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    return (yield from _within(_contexts[1].partition("::")[0]))


def pytest_sessionfinish() -> None:
    _measured.stop()
    _measured.save()
    (_FOLDER / "tests.json").write_text(json.dumps(_contexts_of), encoding="utf-8")
