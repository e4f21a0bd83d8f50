"""Python imports this file when it starts in a process of a test: it notes the lines of the product that are executed.

At its end the process writes JSON into the folder EXECUTED_LINES. The test is the one in the environment at that time,
because a server of tests may fork for several ones.
"""

import atexit
import json
import os
import uuid
from pathlib import Path

import coverage

#: The variable that names the test.
TEST = "EXECUTED_LINES_TEST"

_ROOT = Path(__file__).parents[3]
_WARNINGS = ("no-data-collected", "module-not-imported", "module-not-measured", "module-not-python")


def measurement(file: Path | None) -> coverage.Coverage:
    measured = coverage.Coverage(
        data_file=file and str(file), config_file=False, source=[str(_ROOT / name) for name in ("dpspec", "plugins")]
    )
    measured.set_option("run:disable_warnings", list(_WARNINGS))
    return measured


def _write(measured: coverage.Coverage) -> None:
    measured.stop()
    data = measured.get_data()
    lines = {file: sorted(data.lines(file) or ()) for file in data.measured_files()}
    text = json.dumps({"test": os.environ.get(TEST, ""), "lines": lines})
    (Path(os.environ["EXECUTED_LINES"]) / f"process-{uuid.uuid4()}.json").write_text(text, encoding="utf-8")


if TEST in os.environ:
    _measured = measurement(None)
    _measured.start()
    atexit.register(_write, _measured)
