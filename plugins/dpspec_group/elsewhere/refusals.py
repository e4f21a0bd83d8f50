"""What makes a table of scores unfit, at the place in the spec that is at fault."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec import kit

_SCORES = ("audit", "scores")

#: With fewer canaries, or runs, of a size than this nothing can be shown.
_LEAST = {"one-run": 8, "many-run": 16}

#: Keys of the audit that say how dpspec attacks, and why they mean nothing here.
_OTHERS = {
    "canary": "what was planted, the program that made the scores decided",
    "score": "how canaries are scored, the program that made the scores decided",
    "stop": "the table is there as a whole, and nothing is left to stop",
}


def refusals(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Every reason why scores from elsewhere cannot be judged by this spec."""
    assert spec.audit is not None
    yield from _keys(spec)
    options = spec.audit.options["scores"]
    sizes = spec.threat_model.group_size
    if len(sizes) > 1 and "group_size" not in options:
        yield kit.missing_key(
            "group_size", _SCORES, "name the column that says which rows are of which size, or let there be one size"
        )
        return
    from dpspec_group.elsewhere.table import table_of

    try:
        table = table_of(spec.document, spec.directory)
    except dps.DataError as error:
        yield dps.Diagnostic(code="data-unreadable", message=str(error), path=tuple(error.key.split(".")))
        return
    other = [size for size in table.sizes if size not in sizes]
    if other:
        yield kit.bad_value(
            f"the table has groups of {other[0]}, and threat_model.group_size is {', '.join(map(str, sizes))}",
            (*_SCORES, "group_size") if "group_size" in options else _SCORES,
            "list every size of the table in threat_model.group_size",
        )
        return
    least = _LEAST[spec.audit.method]
    level = _level(len(table.sizes))
    for size in table.sizes:
        coins, _ = table.of_size(size)
        of = f" of groups of {size}" if len(table.sizes) > 1 else ""
        if len(coins) < least:
            yield kit.bad_value(
                f"{len(coins)} rows{of}: {spec.audit.method} needs at least {least}", (*_SCORES, "path")
            )
            continue
        from dpspec.stats import coins as of_coins

        for test in of_coins.examine(coins):
            if test.p_value <= level:
                yield kit.bad_value(
                    f"the coins{of} are not fair: {test.text}, p = {test.p_value:.1g} ({test.name})",
                    (*_SCORES, "coin"),
                    "throw an independent fair coin for every canary, or run, before training; a bound from other "
                    "coins would be false",
                )


def _level(sizes: int) -> float:
    """The level of each of the two tests of coins, so that all of a table have 1e-6 together."""
    from dpspec.stats.coins import LEVEL

    return LEVEL / (2 * sizes)


def _keys(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    for key, why in _OTHERS.items():
        if key in spec.audit.options:
            yield kit.unsupported(f"{key} does not go with scores: {why}", ("audit", key), f"leave {key} out")
    if spec.audit.runs != 1:
        yield kit.unsupported(
            "runs does not go with scores: the table has a row for every run that was made",
            ("audit", "runs"),
            "leave runs out; scores.rows holds the table to their number",
        )
    if spec.audit.expect in ("conforms-within", "checks-missing"):
        yield kit.bad_value(
            f"expect is {spec.audit.expect}, and scores from elsewhere are not-run: dpspec trained nothing, and saw "
            "nothing of what ran",
            ("audit", "expect"),
            "write expect: not-run, or deviates for a pipeline that is broken on purpose",
        )
