"""A pytest plugin that notes which test files execute which lines of the product; needs ``coverage``.

    EXECUTED_LINES=FOLDER PYTHONPATH=tests python -m pytest -p campaigns.executed_lines

Each process writes a JSON file into FOLDER: for each file of the product its lines and the test files that executed
them, fixtures included. What imports execute belongs to no test file. Commands in other processes are not seen.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

_ROOT = Path(__file__).parents[2]

#: Started when pytest loads the plugin, which is before it imports the product.
_measured = coverage.Coverage(data_file=None, config_file=False, source=[str(_ROOT / "dpspec")])
_measured.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _measured.switch_context(item.path.relative_to(_ROOT).as_posix())
    try:
        return (yield)
    finally:
        _measured.switch_context("")


def pytest_sessionfinish() -> None:
    _measured.stop()
    data = _measured.get_data()
    lines = {}
    for file in data.measured_files():
        contexts = {line: sorted(filter(None, names)) for line, names in data.contexts_by_lineno(file).items()}
        lines[Path(file).relative_to(_ROOT).as_posix()] = contexts
    folder = Path(os.environ["EXECUTED_LINES"])
    (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json").write_text(json.dumps(lines), encoding="utf-8")
