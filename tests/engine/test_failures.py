"""A failure of one file of specs, at any stage, leaves the results of the others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import counting

from dpspec.contract import DataError, Spec
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import SpecError
from dpspec.language.load import load_specs

CELLS = "matrix: {mechanism.epsilon: [1.0, 1.1, 1.2]}\n"


@pytest.fixture
def specs(tmp_path: Path) -> tuple[Spec, ...]:
    for name in ("first", "second", "third"):
        text = counting.EXAMPLE.replace("name: coin", f"name: {name}") + CELLS
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    loaded = load_specs(sorted(tmp_path.glob("*.yaml")), counting.catalog())
    assert loaded.ok
    return loaded.specs


def fail(monkeypatch: pytest.MonkeyPatch, stage: str, *names: str) -> None:
    """Let a stage raise an error of the data in one cell of each of these specs."""
    working: Any = getattr(counting.CountingAudit, stage)

    def failing(self: counting.CountingAudit, spec: Any, *arguments: Any) -> Iterator[Any]:
        inputs = spec.document if isinstance(spec, Spec) else spec
        if inputs["mechanism"]["epsilon"] == 1.1 and (stage == "trials" or spec.document["name"] in names):
            raise DataError("data.csv:7: text instead of a number")
        yield from working(self, spec, *arguments)

    monkeypatch.setattr(counting.CountingAudit, stage, failing)


@pytest.mark.ci
@pytest.mark.parametrize("stage", ["bound", "conclude"])
@pytest.mark.parametrize("names", [("second", "third"), ("first",)])
def test_the_other_files_have_the_results_that_they_have_alone(
    specs: tuple[Spec, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, names: tuple[str, ...]
) -> None:
    others = [spec for spec in specs if spec.document["name"] not in names]
    alone = run(others, counting.catalog(), store=Store(tmp_path / "alone"))
    fail(monkeypatch, stage, *names)
    failed: dict[str, SpecError] = {}
    result = run(specs, counting.catalog(), store=Store(tmp_path / "store"), on_failure=failed.__setitem__)
    assert [Path(file).stem for file in failed] == list(names)
    assert all("data.csv:7" in str(error.diagnostics[0].message) for error in failed.values())
    assert [audit.verdicts for audit in result.audits] == [audit.verdicts for audit in alone.audits]
    assert [audit.name for audit in result.audits] == [spec.name for spec in others]


def test_an_error_in_a_trial_ends_the_trials_of_its_file_alone(
    specs: tuple[Spec, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [spec for spec in specs if spec.document["name"] == "first" and spec.mechanism["epsilon"] == 1.1]
    others = [spec for spec in specs if spec.document["name"] == "second" and spec.mechanism["epsilon"] != 1.1]
    fail(monkeypatch, "trials")
    failed: list[str] = []
    result = run(
        [*failing, *others],
        counting.catalog(),
        store=Store(tmp_path / "store"),
        on_failure=lambda file, _: failed.append(Path(file).stem),
    )
    assert failed == ["first"]
    assert [audit.name for audit in result.audits] == [spec.name for spec in others]
    assert result.complete


@pytest.mark.family
@pytest.mark.parametrize("stage", ["bound", "trials", "conclude"])
def test_without_another_file_the_error_ends_the_run(
    specs: tuple[Spec, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    fail(monkeypatch, stage, "first", "second", "third")
    failed: list[str] = []
    with pytest.raises(SpecError, match="data"):
        run(specs, counting.catalog(), store=Store(tmp_path / "s"), on_failure=lambda file, _: failed.append(file))
    assert len(failed) == 2
    with pytest.raises(SpecError, match="data"):
        run(specs, counting.catalog(), store=Store(tmp_path / "other"))
