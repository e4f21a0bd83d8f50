"""The block ``audit.scores``: its keys, and located errors of the block and its table. Does not import numpy."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec.kit import specs
from dpspec.kit.scores_elsewhere.assumptions import coins_level


def _column(description: str) -> dict[str, dps.Json]:
    return {"type": "string", "minLength": 1, "maxLength": 200, "description": description}


#: JSON Schema of the block, for the key ``scores`` of a mechanism's ``audit``.
SCHEMA: dict[str, dps.Json] = specs.block(
    "A table of scores from another program instead of training: a row for each canary of one run, or for each of many "
    "runs. The bound holds if inclusion bits are fair, independent and drawn before training, scores do not depend on "
    "the bits, and the number of rows is fixed before.",
    ["path", "coin", "score"],
    path={
        "type": "string",
        "minLength": 1,
        "maxLength": 4000,
        "description": "The table: a .csv, .npz or .parquet file of at most 128 MiB and 1,000,000 rows. Relative to "
        "the spec's directory.",
    },
    coin=_column("The column of fair inclusion bits: 1 if the canary was included, else 0."),
    score=_column("The column of scores; a higher score means more likely included."),
    group_size=_column("The column with the number of records of the row's group. Default: threat_model.group_size."),
    id=_column("The column with the names of canaries or runs, without duplicates."),
    rows=specs.integer(
        "The number of rows, canaries or runs, as fixed before training.",
        least=1,
        most=10**6,
    ),
    gaussian_curve={
        "type": "boolean",
        "description": "true declares that the mechanism behind the scores has a Gaussian privacy curve, as the "
        "Gaussian mechanism has. Then method one-run also reports epsilon-if-independent. No score can show that a "
        "curve is Gaussian at rates near delta.",
    },
)

_SCORES = ("audit", "scores")

#: Minimum number of canaries or runs per size for a conclusive result.
_LEAST = {"one-run": 8, "many-run": 16}

#: Audit keys that configure dpspec's attacks, and why they do not apply.
_OTHERS = {
    "canary": "the external program chose the canaries",
    "score": "the external program computed the scores",
    "stop": "the table is complete",
    "expected_from": "no update is observed",
    "canary_free_run": "dpspec does not train",
    "shard_runs": "dpspec does not train",
}


def refusals(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """All errors of a spec with external scores."""
    assert spec.audit is not None
    yield from _keys(spec)
    options = spec.audit.options["scores"]
    sizes = spec.threat_model.group_size
    if len(sizes) > 1 and "group_size" not in options:
        yield specs.missing_key("group_size", _SCORES, "name the column of group sizes, or use a single group size")
        return
    from dpspec.kit.scores_elsewhere.score_trial import table_of

    try:
        table = table_of(spec.document, spec.directory)
    except dps.DataError as error:
        yield dps.Diagnostic(code="data-unreadable", message=str(error), path=tuple(error.key.split(".")))
        return
    other = [size for size in table.sizes if size not in sizes]
    if other:
        yield specs.bad_value(
            f"the table has groups of {other[0]}, but threat_model.group_size is {', '.join(map(str, sizes))}",
            (*_SCORES, "group_size") if "group_size" in options else _SCORES,
            "list every size of the table in threat_model.group_size",
        )
        return
    least = _LEAST[spec.audit.method]
    level = coins_level(len(table.sizes))
    for size in table.sizes:
        thrown, _ = table.of_size(size)
        of = f" of groups of {size}" if len(table.sizes) > 1 else ""
        if len(thrown) < least:
            yield specs.bad_value(
                f"{len(thrown)} rows{of}: {spec.audit.method} needs at least {least}", (*_SCORES, "path")
            )
            continue
        from dpspec.stats import binomial

        for test in binomial.coin_tests(thrown):
            if test.p_value <= level:
                yield specs.bad_value(
                    f"the coins{of} are not fair: {test.text}, p = {test.p_value:.1g} ({test.name})",
                    (*_SCORES, "coin"),
                    "throw an independent fair coin for every canary or run before training; bounds from other coins "
                    "are false",
                )


def _keys(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    for key, why in _OTHERS.items():
        if key in spec.audit.options:
            yield specs.unsupported(f"{key} cannot be combined with scores: {why}", ("audit", key), f"remove {key}")
    if spec.audit.method != "one-run" and "gaussian_curve" in spec.audit.options["scores"]:
        yield specs.unsupported(
            "gaussian_curve applies to method one-run only: many runs report no epsilon that assumes a curve",
            (*_SCORES, "gaussian_curve"),
            "remove gaussian_curve",
        )
    if spec.audit.runs != 1:
        yield specs.unsupported(
            "runs cannot be combined with scores: the table has one row per run",
            ("audit", "runs"),
            "remove runs; scores.rows declares their number",
        )
    if spec.audit.expect in ("no-deviation-found", "checks-missing"):
        yield specs.bad_value(
            f"expect is {spec.audit.expect}, but the conformance of external scores is not-run: dpspec does not "
            "observe the training",
            ("audit", "expect"),
            "write expect: not-run, or deviates for a pipeline that is broken on purpose",
        )
