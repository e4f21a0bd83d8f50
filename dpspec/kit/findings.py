"""Findings that many mechanisms make alike, and what bounds of DP-SGD and attacks by coin flips rest on.

An upper bound that is an end of an interval is made by :func:`dpspec.accounting.certified_upper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dpspec.contract as dps

_DP_SGD: Mapping[str, str] = {
    "noise-scale": "Gaussian noise of the declared scale in every step",
    "fresh-noise": "noise is independent across steps",
    "clipping": "every record's gradient is clipped to the clip norm",
    "sampling": "batches are drawn by the declared scheme, afresh each step",
    "steps": "exactly the declared number of updates is made",
    "public-constants": "rate, divisor and schedule do not depend on rows",
}


def dp_sgd_assumptions(**texts: str) -> tuple[dps.Assumption, ...]:
    """The assumptions of a bound on DP-SGD, each ``declared``, with some texts of a mechanism's own.

    Names: noise_scale, fresh_noise, clipping, sampling, steps, public_constants. Raises ``ValueError`` on any other.

    >>> [a.text for a in dp_sgd_assumptions(noise_scale="Laplace noise") if a.name == "noise-scale"]
    ['Laplace noise']
    """
    own = {name.replace("_", "-"): text for name, text in texts.items()}
    unknown = sorted(own.keys() - _DP_SGD.keys())
    if unknown:
        raise ValueError(f"unknown assumptions {', '.join(unknown)} (valid: {', '.join(_DP_SGD)})")
    return tuple(
        dps.Assumption(name=name, status="declared", text=own.get(name, text)) for name, text in _DP_SGD.items()
    )


def coins(text: str, name: str = "coins") -> dps.Assumption:
    """The assumption that independent fair coins, which the audit itself flips, decide what ``text`` says."""
    return dps.Assumption(name=name, status="by-construction", text=text)


#: What every bound on DP-SGD with Gaussian noise rests on.
ASSUMPTIONS = dp_sgd_assumptions()

#: What every lower bound by canary groups rests on.
COINS = coins("each canary group is planted by an independent fair coin")


def executed_scope(
    spec: dps.Spec,
    *,
    adversary: str,
    data: str = "this",
    records: int = 0,
    access: str | None = None,
    record: str | int = "all",
    neighbours: str = "all",
) -> dps.Scope:
    """What an attack, or a measurement, of ``spec`` speaks of: the pipeline that ran.

    data: ``this`` data set, or ``planted`` where canaries stand among other planted ones.
    records: the number of records of the smaller neighbour, which the data sets that are spoken of have at least.
    access: what the adversary saw; by default what the threat model says.
    """
    threat = spec.threat_model
    return dps.Scope(
        adjacency=threat.adjacency,
        unit=spec.unit,
        access=threat.access if access is None else access,
        adversary=adversary,
        data=data,
        record=record,
        pipeline="executed",
        min_records=records,
        neighbours=neighbours,
    )


def theorem_upper(
    quantity: str,
    value: float,
    *,
    scope: dps.Scope,
    method: str,
    source: str,
    at: Mapping[str, dps.Json] | None = None,
    assumptions: Sequence[dps.Assumption] = (),
    printed: dps.Printed | None = None,
) -> dps.Finding:
    """An upper bound by a proved formula that is evaluated in float64; ``inf`` where there is none."""
    return dps.Finding(
        quantity=quantity,
        value=value,
        bound="upper",
        rigor="theorem",
        method=method,
        source=source,
        at=dps.FrozenMap(at or {}),
        scope=scope,
        assumptions=tuple(assumptions),
        printed=printed,
    )


def lower_from(
    evidence: dps.Evidence,
    confidence: float,
    *,
    delta: float | None = None,
    method: str | None = None,
    assumptions: Sequence[dps.Assumption] | None = None,
    scope: dps.Scope | None = None,
    privacy: dps.findings.Privacy = "public",
) -> dps.Finding:
    """The statistical lower bound that ``evidence`` gives: no larger than the truth with probability ``confidence``.

    Its quantity, conditions, scope, source, method and assumptions are the evidence's own, unless others are given.

    confidence: in (0, 1).
    delta: where a bound on epsilon holds; by default the evidence's ``at.delta``.

    Raises ``ValueError`` where evidence of epsilon names no delta and none is given, and on kinds that bound nothing.
    """
    from dpspec.stats import binomial
    from dpspec.stats.attacks import evidence_tests

    at = evidence.at
    if evidence.quantity == "epsilon":
        delta = at.get("delta") if delta is None else delta
        if delta is None:
            raise ValueError(f"evidence {evidence.id!r} names no delta: give delta")
        value = evidence_tests.epsilon_lower(evidence, delta, confidence)
        at = dps.FrozenMap({"delta": delta, **{key: value for key, value in at.items() if key != "delta"}})
    elif evidence.kind == "binomial":
        value = binomial.lower(evidence.statistics["successes"], evidence.statistics["trials"], confidence)
    else:
        raise ValueError(f"evidence {evidence.id!r} of kind {evidence.kind!r} gives no lower bound on a metric")
    return dps.Finding(
        quantity=evidence.quantity,
        value=value,
        bound="lower",
        rigor="statistical",
        method=evidence.method if method is None else method,
        source=evidence.source,
        at=at,
        scope=evidence.scope if scope is None else scope,
        assumptions=evidence.assumptions if assumptions is None else tuple(assumptions),
        confidence=confidence,
        privacy=privacy,
    )
