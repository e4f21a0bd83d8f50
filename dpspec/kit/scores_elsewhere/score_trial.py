"""The table of scores of a spec: read, sorted by score, and stored as the only trial of the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dpspec.contract as dps
from dpspec.data.score_table import MOST_ROWS, PLACE, ScoreTable, read_table, table_digest
from dpspec.kit.recorded import fair_coins, recorded, recorded_number, whole_number


def trial_inputs(spec: dps.Spec) -> dps.FrozenMap:
    """Inputs of the trial: the table's digest and columns, the unit and the number of records.

    Raises:
        DataError: The file cannot be read.
    """
    assert spec.audit is not None
    scores = {key: value for key, value in spec.audit.options["scores"].items() if key != "gaussian_curve"}
    digest = table_digest(spec.directory, scores)
    return dps.FrozenMap(
        {
            "data": {key: value for key, value in spec.document["data"].items() if key != "public"},
            "threat_model": {"access": spec.threat_model.access, "group_size": list(spec.threat_model.group_size)},
            "audit": {"method": spec.audit.method, "seed": spec.audit.seed, "scores": {**scores, "digest": digest}},
        }
    )


def table_of(inputs: Mapping[str, Any], directory: str | Path) -> ScoreTable:
    """The table of a spec's document, or of trial inputs if its digest matches.

    Raises:
        DataError: The table cannot be read, is invalid, or has changed.
    """
    options = dict(inputs["audit"]["scores"])
    wanted = options.pop("digest", None)
    sizes = {int(size) for size in inputs["threat_model"]["group_size"]}
    table = read_table(directory, options, min(sizes) if len(sizes) == 1 else None)
    if wanted is not None and table.digest != wanted:
        raise dps.DataError("the table of scores changed during the run", f"{PLACE}.path")
    return table


def run_trials(inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
    """The only trial: inclusion bits per group size by ascending score. The scores stay in the store."""
    table = table_of(inputs, context.directory)
    order = ranked if inputs["audit"]["method"] == "many-run" else shuffled_ties
    for index in indices:
        seed = int(inputs["audit"]["seed"])
        outcomes: list[dps.Json] = [[size, order(*table.of_size(size), seed)] for size in table.sizes]
        yield dps.Trial(
            index=index,
            evidence=dps.FrozenMap(
                {"records": context.facts.records, "table": table.digest, "rows": len(table), "outcomes": outcomes}
            ),
            arrays={"scores": table.scores, "coins": table.coins, "group_sizes": table.group_sizes},
        )


def shuffled_ties(coins: np.ndarray[Any, Any], scores: np.ndarray[Any, Any], seed: int) -> str:
    """Inclusion bits by ascending score, with ties in random order.

    The file's order may depend on the bits, for example if it lists all included records first, so ties must not keep
    it. The order derives only from ``seed``.
    """
    source = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, 0x7135])))
    lot = source.permutation(len(coins))
    at = np.lexsort((lot, scores))
    return bytes(coins[at].astype(np.uint8) + ord("0")).decode("ascii")


def ranked(coins: np.ndarray[Any, Any], scores: np.ndarray[Any, Any], seed: int) -> str:
    """Inclusion bits by ascending score, ties ordered against the attack for the many-run test; ignores ``seed``."""
    from dpspec.stats.attacks import thresholds

    return thresholds.outcomes(scores, coins)


def recorded_outcomes(spec: dps.Spec, trial: dps.Trial) -> dict[int, str]:
    """Recorded inclusion bits per group size. Raises ``ValueError`` for values that no table yields."""
    rows = recorded_number(trial, "rows", most=MOST_ROWS)
    outcomes = recorded(trial, "outcomes")
    found = list(outcomes) if isinstance(outcomes, list | tuple) else [outcomes]
    if not all(isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[1], str) for one in found):
        raise ValueError("outcomes must be a list of sizes with coins")
    sizes = [whole_number(size, "a group size", least=1) for size, _ in found]
    if sizes != sorted(set(sizes)) or not set(sizes) <= set(spec.threat_model.group_size):
        raise ValueError("outcomes must have group sizes of the threat model, in order")
    if sum(len(coins) for _, coins in found) != rows:
        raise ValueError(f"outcomes must have {rows} rows")
    return {size: fair_coins(coins, len(coins)) for size, (_, coins) in zip(sizes, found, strict=True)}
