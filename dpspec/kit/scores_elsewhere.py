"""Audits of scores computed by another program: the key ``audit.scores``, with the table as the only trial.

A mechanism with an upper bound adds ``SCHEMA`` under ``audit.scores``, reports ``refusals``, delegates to
``trial_inputs`` and ``run_trials``, and concludes from ``recorded_outcomes`` with the ``assumptions``. dpspec trains no
model here, and observes neither the inclusion bits nor the training: every number depends on ``declared`` assumptions,
and upper bounds apply to the declaration. If the scores reject the bound of the declared mechanism, the executed run
differs from the declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpspec.contract as dps
from dpspec.contract.fragments import block, integer
from dpspec.contract.frozen import without
from dpspec.contract.spec import COLLECTION
from dpspec.data.score_table import MOST_ROWS, PLACE, ScoreTable, read_table, table_digest
from dpspec.kit.findings import bad_value, missing_key, unsupported
from dpspec.kit.trials import fair_coins, recorded, recorded_number, whole_number

if TYPE_CHECKING:
    import numpy as np

#: Assumption of upper bounds for an unobserved training.
TRAINED_AS_DECLARED = dps.Assumption(
    name="trained-as-declared",
    status="unchecked",
    text="an external program trained by the declared mechanism, with constants that do not depend on rows; dpspec "
    "observed only the scores",
)

#: The statements about a table of scores, whose rows are canaries or runs, by the name of the assumption.
TEXTS = {
    "fair-coins": "an independent fair coin, thrown before training, decides whether each row of the table is in or "
    "out; only balance and alternation were tested",
    "blind-scores": "one rule computes the score of each row, in or out, without its coin",
    "fixed-rows": "the number of rows was fixed before training, and the table contains all rows",
    "access": "scores use only the releases that threat_model.access names and the adversary's knowledge",
}

#: Maximum p-value for a contradiction, so that a thousand audits share the conformance level 1e-6.
_CONTRADICTS = 1e-9


def as_executed(finding: dps.Finding) -> dps.Finding:
    """Convert an upper bound for the declared mechanism to one for the external run, if it follows the declaration."""
    remaining = tuple(a for a in finding.assumptions if a.name != "data-independent-hyperparameters")
    scope = replace(finding.scope, pipeline="executed")
    return replace(finding, scope=scope, assumptions=(*remaining, TRAINED_AS_DECLARED))


def assumptions(rows: int, sizes: int) -> tuple[dps.Assumption, ...]:
    """Assumptions of every bound from an external score table with ``rows`` rows for each of ``sizes`` group sizes."""
    from dpspec.stats import binomial

    level = coins_level(sizes)
    stated = [dps.Assumption(name=name, status="declared", text=text) for name, text in TEXTS.items()]
    tested = "exact binomial tests of balance and alternation"
    stated[0] = replace(
        stated[0], test=tested, level=level, detectable=2.0 * (binomial.least_imbalance(rows, level) - 0.5)
    )
    return tuple(stated)


def coins_level(sizes: int) -> float:
    """Level of each of the two tests of inclusion bits, for a total of 1e-6 over all ``sizes`` of a table."""
    from dpspec.stats.binomial import COIN_LEVEL

    return COIN_LEVEL / (2 * sizes)


def contradiction(
    evidence: dps.Evidence, curve: Sequence[tuple[float, float]], group_size: int = 1
) -> Iterator[dps.Check]:
    """A check that is reported only if it rejects, because acceptance does not confirm the executed run.

    curve: (epsilon, delta) pairs of the declared mechanism's bound for groups of ``group_size``.
    """
    from dpspec.stats.attacks import evidence_tests

    p_value = evidence_tests.curve_p_value(evidence, curve)
    if p_value <= _CONTRADICTS:
        of_groups = f", groups of {group_size}" if group_size > 1 else ""
        yield dps.Check(
            assumption=TRAINED_AS_DECLARED.name,
            test=f"{evidence.method}: the declared mechanism's own bound",
            p_value=p_value,
            observed="measured",
            note=f"or an assumption about coins and scores is false{of_groups}",
        )


_COLUMN: dict[str, dps.Json] = {"type": "string", "minLength": 1, "maxLength": 200}

#: JSON Schema of the block, for the key ``scores`` of a mechanism's ``audit``.
SCHEMA: dict[str, dps.Json] = block(
    "A table of scores from another program instead of training: a row for each canary of one run, or for each of many "
    "runs. The bound holds if inclusion bits are fair, independent and drawn before training, scores do not depend on "
    "the bits, and the number of rows is fixed before.",
    ["path", "coin", "score"],
    path={
        "type": "string",
        "minLength": 1,
        "maxLength": 4000,
        "description": "The table: a .csv or .npz file of at most 128 MiB and 1,000,000 rows. Relative to "
        "the spec's directory.",
    },
    coin={**_COLUMN, "description": "The column of fair inclusion bits: 1 if the canary was included, else 0."},
    score={**_COLUMN, "description": "The column of scores; a higher score means more likely included."},
    group_size={
        **_COLUMN,
        "description": "The column with the number of records of the row's group. Default: threat_model.group_size.",
    },
    id={**_COLUMN, "description": "The column with the names of canaries or runs, without duplicates."},
    rows=integer("The number of rows, canaries or runs, as fixed before training.", least=1, most=10**6),
)

_SCORES = ("audit", "scores")

#: Minimum number of canaries or runs per size for a conclusive result.
_LEAST = {"one-run": 8, "many-run": 16}

#: Audit keys that configure dpspec's attacks, and why they do not apply.
_OTHERS = {
    "canary": "the external program chose the canaries",
    "score": "the external program computed the scores",
    "expected_from": "no update is observed",
    "canary_free_run": "dpspec does not train",
    "shard_runs": "dpspec does not train",
    "stop": "the table is complete",
}


def refusals(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """All errors of a spec with external scores."""
    assert spec.audit is not None
    yield from _keys(spec)
    options = spec.audit.options["scores"]
    sizes = spec.threat_model.group_size
    if len(sizes) > 1 and "group_size" not in options:
        yield missing_key("group_size", _SCORES, "name the column of group sizes, or use a single group size")
        return
    try:
        table = table_of(spec.document, spec.directory)
    except dps.DataError as error:
        yield dps.Diagnostic(code="data-unreadable", message=str(error), path=tuple(error.key.split(".")))
        return
    undeclared = [size for size in table.sizes if size not in sizes]
    if undeclared:
        yield bad_value(
            f"the table has groups of {undeclared[0]}, but threat_model.group_size is {', '.join(map(str, sizes))}",
            (*_SCORES, "group_size") if "group_size" in options else _SCORES,
            "list every size of the table in threat_model.group_size",
        )
        return
    least = _LEAST[spec.audit.method]
    level = coins_level(len(table.sizes))
    for size in table.sizes:
        thrown, _ = table.of_size(size)
        of_groups = f" of groups of {size}" if len(table.sizes) > 1 else ""
        if len(thrown) < least:
            yield bad_value(
                f"{len(thrown)} rows{of_groups}: {spec.audit.method} needs at least {least}", (*_SCORES, "path")
            )
            continue
        from dpspec.stats import binomial

        for name, p_value, text in binomial.coin_tests(thrown):
            if p_value <= level:
                yield bad_value(
                    f"the coins{of_groups} are not fair: {text}, p = {p_value:.1g} ({name})",
                    (*_SCORES, "coin"),
                    "throw an independent fair coin for every canary or run before training; bounds from other coins "
                    "are false",
                )


def _keys(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    for key, reason in _OTHERS.items():
        if key in spec.audit.options:
            yield unsupported(f"{key} cannot be combined with scores: {reason}", ("audit", key), f"remove {key}")
    if spec.audit.runs != 1:
        yield unsupported(
            "runs cannot be combined with scores: the table has one row per run",
            ("audit", "runs"),
            "remove runs; scores.rows declares their number",
        )
    if spec.audit.expect in ("no-deviation-found", "checks-missing"):
        yield bad_value(
            f"expect is {spec.audit.expect}, but the conformance of external scores is not-run: dpspec does not "
            "observe the training",
            ("audit", "expect"),
            "write expect: not-run, or deviates for a pipeline that is broken on purpose",
        )


def trial_inputs(spec: dps.Spec) -> dps.FrozenMap:
    """Inputs of the trial: the table's digest and columns, the unit and the number of records.

    Raises:
        DataError: The file cannot be read.
    """
    assert spec.audit is not None
    scores = spec.audit.options["scores"]
    digest = table_digest(spec.directory, scores)
    return dps.FrozenMap(
        {
            "data": without(spec.document["data"], ("public", COLLECTION)),
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
    expected_digest = options.pop("digest", None)
    sizes = {int(size) for size in inputs["threat_model"]["group_size"]}
    table = read_table(directory, options, min(sizes) if len(sizes) == 1 else None)
    if expected_digest is not None and table.digest != expected_digest:
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
    import numpy as np

    source = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, 0x7135])))
    lot = source.permutation(len(coins))
    order = np.lexsort((lot, scores))
    return bytes(coins[order].astype(np.uint8) + ord("0")).decode("ascii")


def ranked(coins: np.ndarray[Any, Any], scores: np.ndarray[Any, Any], seed: int) -> str:
    """Inclusion bits by ascending score, ties ordered against the attack for the many-run test; ignores ``seed``."""
    from dpspec.stats.attacks import thresholds

    return thresholds.outcomes(scores, coins)


def recorded_outcomes(spec: dps.Spec, trial: dps.Trial) -> dict[int, str]:
    """Recorded inclusion bits per group size. Raises ``ValueError`` for values that no table yields."""
    rows = recorded_number(trial, "rows", most=MOST_ROWS)
    outcomes = recorded(trial, "outcomes")
    pairs = list(outcomes) if isinstance(outcomes, list | tuple) else [outcomes]
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], str) for pair in pairs):
        raise ValueError("outcomes must be a list of sizes with coins")
    sizes = [whole_number(size, "a group size", least=1) for size, _ in pairs]
    if sizes != sorted(set(sizes)) or not set(sizes) <= set(spec.threat_model.group_size):
        raise ValueError("outcomes must have group sizes of the threat model, in order")
    if sum(len(coins) for _, coins in pairs) != rows:
        raise ValueError(f"outcomes must have {rows} rows")
    return {size: fair_coins(coins, len(coins)) for size, (_, coins) in zip(sizes, pairs, strict=True)}
