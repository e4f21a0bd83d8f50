"""A third-party mechanism judges a table of external scores by the kit's functions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpspec.contract as dps
from dpspec import kit
from dpspec.kit import scores_elsewhere
from dpspec.kit.scores_elsewhere import TRAINED_AS_DECLARED, as_executed, assumptions, contradiction
from dpspec.stats.attacks import thresholds


def spec(folder: Path, *, sizes: tuple[int, ...] = (1,), runs: int = 1, **scores: Any) -> Any:
    block = {"path": "t.csv", "coin": "in", "score": "score", **scores}
    threat = {"access": "final-model", "group_size": list(sizes)}
    return SimpleNamespace(
        directory=folder,
        unit="record",
        document=dps.freeze(
            {"audit": {"scores": block}, "threat_model": threat, "data": {"kind": "declared", "records": 90}}
        ),
        audit=SimpleNamespace(
            method="many-run", seed=3, runs=runs, expect=None, confidence=0.95, options=dps.freeze({"scores": block})
        ),
        threat_model=SimpleNamespace(access="final-model", group_size=sizes, adjacency="add-remove", unit="record"),
    )


def table(folder: Path, coins: Sequence[int], scores: Sequence[float]) -> None:
    lines = ["in,score", *(f"{coin},{score!r}" for coin, score in zip(coins, scores, strict=True))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def separated(rows: int, shift: float) -> tuple[list[int], list[float]]:
    source = np.random.default_rng(0)
    coins = source.integers(0, 2, rows)
    return coins.tolist(), (source.normal(size=rows) + shift * coins).tolist()


def trial_of(given: Any) -> dps.Trial:
    context: Any = SimpleNamespace(directory=given.directory, facts=SimpleNamespace(records=90))
    (trial,) = scores_elsewhere.run_trials(scores_elsewhere.trial_inputs(given), context, [0])
    return trial


def conclude(given: Any, trial: dps.Trial, epsilon: float) -> Iterator[dps.Outcome]:
    """Return a plugin's custom evidence, and the check against its bound, (epsilon, 1e-5)."""
    outcomes = scores_elsewhere.recorded_outcomes(given, trial)
    for size, ranked in outcomes.items():
        assumed = assumptions(len(ranked), len(outcomes))
        evidence = dps.Evidence(
            id=f"k={size}",
            kind="many-run-ranked",
            statistics=dps.FrozenMap({"outcomes": ranked}),
            scope=kit.executed_scope(given, adversary="record"),
            at=dps.FrozenMap({"delta": 1e-5, "group_size": size}),
            method="many-run",
            source=thresholds.SOURCE,
            assumptions=assumed,
        )
        yield evidence
        yield kit.lower_from(evidence, 0.95)
        yield from contradiction(evidence, [(epsilon, 1e-5)], size)


def test_a_bound_that_scores_reject_is_contradicted_and_a_true_one_is_not(tmp_path: Path) -> None:
    coins, scores = separated(600, 3.0)
    table(tmp_path, coins, scores)
    given = spec(tmp_path)
    assert list(scores_elsewhere.refusals(given)) == []
    trial = trial_of(given)
    evidence, lower, check = conclude(given, trial, 0.1)
    assert isinstance(evidence, dps.Evidence)
    assert isinstance(lower, dps.Finding)
    assert isinstance(check, dps.Check)
    assert evidence.statistics["outcomes"] == thresholds.outcomes(scores, coins)
    assert {a.name for a in lower.assumptions} == {"fair-coins", "blind-scores", "fixed-rows", "access"}
    assert lower.value > 1.0
    assert (check.assumption, check.observed) == (TRAINED_AS_DECLARED.name, "measured")
    assert check.p_value <= 1e-9
    assert len(list(conclude(given, trial, 9.0))) == 2


def test_an_upper_bound_names_the_unobserved_run() -> None:
    finding = kit.theorem_upper(
        "epsilon", 1.0, scope=dps.Scope(), method="a bound", source="textbook", assumptions=kit.ASSUMPTIONS
    )
    executed = as_executed(finding)
    assert executed.scope.pipeline == "executed"
    assert executed.assumptions[-1] == TRAINED_AS_DECLARED
    assert {a.name for a in finding.assumptions} - {a.name for a in executed.assumptions} == {
        "data-independent-hyperparameters"
    }


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({"runs": 2}, ("audit", "runs"), "runs cannot be combined with scores"),
        ({"sizes": (1, 2)}, ("audit", "scores"), "group_size"),
        ({"rows": 599}, ("audit", "scores", "rows"), "600 rows"),
        ({"coin": "inn"}, ("audit", "scores", "coin"), "has no column"),
    ],
)
def test_what_does_not_fit_is_located(changes: dict[str, Any], path: dps.Path, text: str, tmp_path: Path) -> None:
    table(tmp_path, *separated(600, 1.0))
    (diagnostic,) = scores_elsewhere.refusals(spec(tmp_path, **changes))
    assert diagnostic.path == path
    assert text in diagnostic.message


def test_the_trial_reads_the_table_that_it_was_promised(tmp_path: Path) -> None:
    table(tmp_path, *separated(600, 1.0))
    inputs = scores_elsewhere.trial_inputs(spec(tmp_path))
    table(tmp_path, *separated(600, 2.0))
    with pytest.raises(dps.DataError, match="changed during the run"):
        scores_elsewhere.table_of(inputs, tmp_path)
