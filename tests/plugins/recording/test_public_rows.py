"""A fixed number of rows beyond the drawn records is asked about; numbers that follow the records deviate."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checked_runs import Question, check_run
from support.opacus_training import FEATURES, Training, physical_batches, recorded

pytestmark = pytest.mark.filterwarnings("ignore")

Script = Callable[[Training], None]


def with_fakes(count: Callable[[int], int]) -> Script:
    """Train on each batch with rows of no record, as a discriminator is trained on fakes."""

    def script(training: Training) -> None:
        for _ in range(training.epochs):
            for x, y in training.loader:
                fakes = count(len(x))
                rows = torch.cat([x, torch.randn(fakes, FEATURES)])
                training.step(rows, torch.cat([y, torch.zeros(fakes, dtype=torch.long)]))

    return script


def twice(training: Training) -> None:
    for x, y in training.loader:
        training.step(torch.cat([x, -x]), torch.cat([y, y]))


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost", "per_layer"])
@pytest.mark.parametrize("fakes", [1, 15])
def test_a_fixed_number_of_public_rows_is_asked_about(clipping: str, fakes: int, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", with_fakes(lambda _: fakes), clipping=clipping)
    assert run.status == ("open", "no-deviation-found")
    rows = f"{fakes} rows" if fakes > 1 else "one row"
    assert f"every step has {rows} beyond its records" in run.assumption("public-rows").text
    assert not run.audit.recording.rules
    question = Question(delta=1e-5, epsilon=100.0, assume=("public-rows",))
    assert check_run(tmp_path / "run", question).verdict == "proved"


@pytest.mark.family
@pytest.mark.parametrize(
    "script", [twice, with_fakes(lambda records: records // 2), with_fakes(lambda records: 1 + records % 2)]
)
def test_rows_whose_number_follows_the_records_deviate(script: Script, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", script)
    assert run.status == ("open", "deviates")
    assert "clipped norms in excess of the drawn records" in run.rejected


@pytest.mark.ci
def test_batches_of_one_size_do_not_show_a_fixed_number(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", with_fakes(lambda records: records), poisson=False)
    assert run.run.further_rows == 0
    assert "clipped norms in excess of the drawn records" in run.rejected


@pytest.mark.ci
def test_further_rows_do_not_hide_a_missing_record(tmp_path: Path) -> None:
    def script(training: Training) -> None:
        with physical_batches(training.loader, training.private, None) as batches:
            for number, (x, y) in enumerate(batches):
                kept = x[: len(x) - (number == 4)]
                rows = torch.cat([kept, torch.randn(3, FEATURES)])
                training.step(rows, torch.cat([y[: len(kept)], torch.zeros(3, dtype=torch.long)]))

    assert recorded(tmp_path / "run", script).status == ("open", "deviates")
