"""Which number speaks of which claim: the orders on every part of a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dpspec.contract import Claim, Scope, Spec

#: Each order from weak to strong: what holds against, or over, the stronger holds for the weaker too.
_ACCESS = {"final-model": 0, "all-iterates": 1}
_ADVERSARY = {"none": 0, "record": 1, "gradient": 2}
_DATA = frozenset({"this", "collection", "all"})


def covers(upper: Scope, claim: Scope) -> bool:
    """Whether what holds throughout ``upper`` holds throughout ``claim``.

    An upper bound counts for a claim if ``covers(bound, claim)``; an attack or a lower bound counts if
    ``covers(claim, attack)``. Adjacency and unit must agree. ``both`` directions cover either one; all iterates cover
    the final model; an adversary who chooses gradients covers one who chooses records, who covers one who chooses
    nothing; all data sets cover a declared collection, which covers this one, and all cover ``planted`` ones; all
    records cover one. ``pipeline`` is
    not compared: conformance speaks of it. A value outside these orders covers itself alone.
    """
    return (
        upper.adjacency == claim.adjacency
        and upper.unit == claim.unit
        and upper.direction in ("both", claim.direction)
        and _at_least(_ACCESS, upper.access, claim.access)
        and _at_least(_ADVERSARY, upper.adversary, claim.adversary)
        and _data_covers(upper.data, claim.data)
        and upper.record in ("all", claim.record)
    )


def shortfall(upper: Scope, claim: Scope) -> list[str]:
    """In what ``upper`` fails to cover a claim's scope, in words; empty where it covers it."""
    return [
        f"its {name} is {value!r}, and the claim's {getattr(claim, name)!r}"
        for name, value in dataclasses.asdict(upper).items()
        if not covers(dataclasses.replace(claim, **{name: value}), claim)
    ]


def claim_scope(spec: Spec, claim: Claim) -> Scope:
    """The scope that a claim speaks of: the threat model's, narrowed by the claim's own keys.

    Without ``over`` a claim is about all data sets, unless its kind is per-instance: then it is about the declared
    one. The adversary is the strongest one, where the threat model's own keys do not say otherwise.
    """
    if claim.over is not None:
        data = claim.over if claim.over in _DATA else "collection"
    else:
        data = "this" if claim.kind == "per-instance-dp" else "all"
    return Scope(
        adjacency=claim.adjacency,
        unit=spec.threat_model.unit,
        direction=claim.direction,
        access=claim.access,
        adversary=str(spec.threat_model.options.get("adversary", "gradient")),
        data=data,
        record="all" if claim.record is None else claim.record,
    )


def _data_covers(one: str, other: str) -> bool:
    return one in ("all", other) or (one == "collection" and other == "this")


def _at_least(order: Mapping[str, int], one: str, other: str) -> bool:
    if one == other:
        return True
    return one in order and other in order and order[one] > order[other]
