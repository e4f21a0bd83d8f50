"""What scores from elsewhere rest on, and the one thing that they can show of what ran.

*What nobody here can see* is whether coins were thrown as they should, whether scores knew them, and whether canaries
were left out afterwards. These stand as assumptions, ``declared``, beside every number. And dpspec saw nothing of the
training: upper bounds hold for what is declared, so that of what ran they say nothing without an assumption that
nobody checked, and no claim is proved by them. One thing is tested of it: where the scores reject the bound of the
declared mechanism itself, what ran is not what was declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps

#: What the upper bounds of a training that nobody here saw rest on.
TRAINED_AS_DECLARED = dps.Assumption(
    name="trained-as-declared",
    status="unchecked",
    text="what made the scores is the declared mechanism, with constants that do not depend on rows: it ran elsewhere, "
    "and dpspec saw nothing of it but the scores",
)

#: The scores contradict the declaration where the p-value of its bound is no larger: so small that a thousand audits
#: in one invocation share the level of conformance, 1e-6.
_CONTRADICTS = 1e-9


def as_executed(finding: dps.Finding) -> dps.Finding:
    """An upper bound of the declared mechanism, as one on what ran elsewhere if that is what was declared."""
    kept = tuple(a for a in finding.assumptions if a.name != "public-constants")
    return replace(
        finding,
        scope=replace(finding.scope, pipeline="executed"),
        assumptions=(*kept, TRAINED_AS_DECLARED),
    )


def assumptions(method: str, rows: int, sizes: int) -> tuple[dps.Assumption, ...]:
    """What every number from scores of elsewhere rests on, of so many rows of one of so many group sizes.

    method: ``one-run`` or ``many-run``, so that a row is a canary or a run.
    """
    from dpspec.stats import coins

    one, row = ("run", "runs") if method == "many-run" else ("canary", "canaries")
    level = coins_level(sizes)
    return (
        dps.Assumption(
            name="fair-coins",
            status="declared",
            text=f"each {one} is in or out by a fair coin of its own, thrown before training and independent of all "
            "else; that not too many are alike, and not too many in turns, was looked at, and nothing else",
            test="exact binomial tests of balance and alternation",
            level=level,
            detectable=2.0 * (coins.least_seen(rows, level) - 0.5),
        ),
        dps.Assumption(
            name="blind-scores",
            status="declared",
            text=f"the score of a {one} was made by one rule for those in and those out, without looking at its coin",
        ),
        dps.Assumption(
            name="fixed-rows",
            status="declared",
            text=f"how many {row} there are was fixed before training, and all of them are in the table",
        ),
        dps.Assumption(
            name="access",
            status="declared",
            text="scores were made of what threat_model.access says is released, and of nothing that an adversary "
            "does not know",
        ),
    )


def coins_level(sizes: int) -> float:
    """The level of each of the two tests of coins, so that all of a table with so many sizes have 1e-6 together."""
    from dpspec.stats.coins import LEVEL

    return LEVEL / (2 * sizes)


def contradiction(
    evidence: dps.Evidence, curve: Sequence[tuple[float, float]], group_size: int = 1
) -> Iterator[dps.Check]:
    """A check that is made known only where it rejects: one that does not would be no word on what ran.

    curve: (epsilon, delta) pairs of the declared mechanism's own bound on groups of ``group_size``.
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
            note=f"or coins and scores are not what they are taken for{of_groups}",
        )
