"""Assumptions of bounds from external scores, and the one test of the executed training.

dpspec observes neither the inclusion bits nor the training, so every number depends on ``declared`` assumptions, and
upper bounds apply to the declaration. If the scores reject the bound of the declared mechanism, the executed run
differs from the declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps

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
    kept = tuple(a for a in finding.assumptions if a.name != "data-independent-hyperparameters")
    return replace(
        finding,
        scope=replace(finding.scope, pipeline="executed"),
        assumptions=(*kept, TRAINED_AS_DECLARED),
    )


def assumptions(rows: int, sizes: int) -> tuple[dps.Assumption, ...]:
    """Assumptions of every bound from an external score table with ``rows`` rows per group size.

    Args:
        rows: Number of rows of a group size.
        sizes: Number of group sizes.
    """
    from dpspec.stats import binomial

    level = coins_level(sizes)
    found = [dps.Assumption(name=name, status="declared", text=text) for name, text in TEXTS.items()]
    tested = "exact binomial tests of balance and alternation"
    found[0] = replace(
        found[0], test=tested, level=level, detectable=2.0 * (binomial.least_imbalance(rows, level) - 0.5)
    )
    return tuple(found)


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
