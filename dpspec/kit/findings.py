"""Common findings, and assumptions of DP-SGD bounds and of attacks with inclusion bits.

:func:`dpspec.accounting.certified_upper` makes upper bounds from intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dpspec.contract as dps

_DP_SGD: Mapping[str, str] = {
    "noise-scale": "Gaussian noise of the declared scale in every step",
    "independent-noise": "noise is independent across steps",
    "clipping": "every record's gradient is clipped to the clip norm",
    "sampling": "batches are drawn by the declared scheme, afresh each step",
    "steps": "exactly the declared number of updates is made",
    "data-independent-hyperparameters": "rate, divisor and schedule do not depend on rows",
}


def dp_sgd_assumptions(**texts: str) -> tuple[dps.Assumption, ...]:
    """Assumptions of a bound on DP-SGD, each ``declared``, with optional custom texts.

    Names: noise_scale, independent_noise, clipping, sampling, steps, data_independent_hyperparameters. Others raise
    ``ValueError``.

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
    """The assumption ``text`` about independent fair coins that the audit itself draws."""
    return dps.Assumption(name=name, status="by-construction", text=text)


#: Assumptions of every bound on DP-SGD with Gaussian noise.
ASSUMPTIONS = dp_sgd_assumptions()

#: Assumption of every lower bound from canary groups.
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
    """Scope of an attack on, or a measurement of, the executed pipeline of ``spec``.

    Args:
        spec: The spec.
        adversary: See ``Scope``.
        data: ``this`` dataset, or ``planted`` if the canaries are among other canaries.
        records: Number of records of the smaller neighbor, the minimum of the scope.
        access: What the adversary saw. Default: the threat model's.
        record: See ``Scope``.
        neighbours: See ``Scope``.
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
    """An upper bound by a proved formula evaluated in float64; ``inf`` if there is none."""
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
    """Statistical lower bound from ``evidence``, valid with probability ``confidence``.

    Quantity, conditions, scope, source, method and assumptions default to the evidence's own.

    Args:
        evidence: The evidence.
        confidence: In (0, 1).
        delta: Delta of a bound on epsilon. Default: the evidence's ``at.delta``.
        method: Method of the finding.
        assumptions: Assumptions of the finding.
        scope: Scope of the finding.
        privacy: Privacy label of the finding.

    Raises:
        ValueError: There is no delta for a bound on epsilon, or evidence of this kind yields no bound.
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
