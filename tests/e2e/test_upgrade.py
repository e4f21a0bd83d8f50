"""What version 0.2.0 wrote: its trials are found again, its results and recordings are refused with one sentence."""

import shutil
from pathlib import Path

import pytest

WRITTEN = Path(__file__).parents[1] / "golden" / "artifacts-0.2.0"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WRITTEN, tmp_path / "written"))


@pytest.mark.ci
def test_stored_trials_are_found_again(dpspec, written: Path) -> None:
    ended = dpspec("run", written / "tiny.yaml", "--store", written / "store")
    assert "1 of 1 trials from the store, made by dpspec 0.2.0" in " ".join((ended.stdout + ended.stderr).split())
    assert "PROVED        a: epsilon <= 8" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "result.json"), "the result is of dpspec 0.2 or older, which can read it: run its spec again"),
        (("report", "result.json"), "the result is of dpspec 0.2 or older, which can read it: run its spec again"),
        pytest.param(
            ("check", "run", "--epsilon", "8"),
            "a recording of an earlier version of dpspec: record again",
            marks=pytest.mark.recorder,
        ),
    ],
)
def test_results_and_recordings_are_refused(dpspec, written: Path, arguments: tuple[str, ...], message: str) -> None:
    command, name, *options = arguments
    ended = dpspec(command, written / name, *options)
    assert ended.returncode not in (0, 1, 70)
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(message)
