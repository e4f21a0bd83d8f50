"""Common findings, series, assumptions and located errors, and the claimed values that findings are about."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import dpspec.contract as dps
from dpspec.contract.findings import AS_RUN
from dpspec.contract.fragments import LEAST_NOISE_MULTIPLIER
from dpspec.renames import old_arguments
from dpspec.text import closest
from dpspec.text import did_you_mean as suggestion

if TYPE_CHECKING:
    from dpspec.accounting import Interval
    from dpspec.stats.as_run import Ran


def series(
    name: str,
    title: str,
    columns: Mapping[str, Sequence[dps.Json]],
    *,
    rigor: dps.findings.Rigor,
    source: str,
    x: str | None = None,
    y: Sequence[str] = (),
    by: str | None = None,
    log: Sequence[str] = (),
    kind: str | None = None,
    units: Mapping[str, str] | None = None,
    upper: Iterable[str] = (),
    lower: Iterable[str] = (),
    privacy: dps.findings.Privacy = "public",
) -> dps.Series:
    """Create a series of named ``columns`` of equal length. Non-finite floats become empty (None).

    ``dpspec.contract.Series.plot`` describes the drawing options; without ``y`` the series is only a table. ``upper``
    and ``lower`` are the columns with bounds, which reports round up and down.
    """
    plot: dict[str, dps.Json] = {"kind": kind, "x": x, "y": list(y), "by": by, "log": list(log)}
    finite: dict[str, dps.Json] = {}
    for column, values in columns.items():
        finite[column] = [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
    return dps.Series(
        name=name,
        title=title,
        columns=dps.FrozenMap(finite),
        units=dps.FrozenMap(dict.fromkeys(columns, "") | dict(units or {})),
        rigor=rigor,
        source=source,
        privacy=privacy,
        plot=dps.FrozenMap({key: value for key, value in plot.items() if value} if y else {}),
        bounds=dps.FrozenMap(dict.fromkeys(upper, "upper") | dict.fromkeys(lower, "lower")),
    )


def columns_of(names: Sequence[str], rows: Iterable[Sequence[dps.Json]]) -> dict[str, list[dps.Json]]:
    """Convert rows, each with a value per name, to columns. Raises ``ValueError`` for a row of another length.

    >>> columns_of(("epsilon", "delta"), [(1.0, 1e-5), (2.0, 1e-6)])
    {'epsilon': [1.0, 2.0], 'delta': [1e-05, 1e-06]}
    """
    columns: dict[str, list[dps.Json]] = {name: [] for name in names}
    for row in rows:
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    return columns


#: The assumption of bounds on noise of real numbers, for a mechanism or a recorded training.
EXACT_ARITHMETIC = "noise and sums are real numbers: the bits of floating-point noise release more"

_DP_SGD: Mapping[str, str] = {
    "noise-scale": "Gaussian noise of the declared scale in every step",
    "independent-noise": "noise is independent across steps",
    "clipping": "every record's gradient is clipped to the clip norm",
    "sampling": "batches are drawn by the declared scheme, afresh each step",
    "steps": "the number of updates is exactly the declared one",
    "data-independent-hyperparameters": "rate, divisor and schedule do not depend on rows",
    "exact-arithmetic": EXACT_ARITHMETIC,
}


def dp_sgd_assumptions(**texts: str) -> tuple[dps.Assumption, ...]:
    """Assumptions of a bound on DP-SGD, each ``declared``, with optional custom texts by name, such as ``noise_scale``.

    >>> [a.text for a in dp_sgd_assumptions(noise_scale="Laplace noise") if a.name == "noise-scale"]
    ['Laplace noise']

    Raises:
        ValueError: An unknown name.
    """
    texts_by_name = {name.replace("_", "-"): text for name, text in texts.items()}
    unknown = sorted(texts_by_name.keys() - _DP_SGD.keys())
    if unknown:
        raise ValueError(f"unknown assumptions {', '.join(unknown)} (valid: {', '.join(_DP_SGD)})")
    return tuple(
        dps.Assumption(name=name, status="declared", text=texts_by_name.get(name, text))
        for name, text in _DP_SGD.items()
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
    """Scope of an attack on, or a measurement of, the executed pipeline of ``spec``; arguments as in ``Scope``.

    ``data`` is ``this`` dataset, or ``planted`` if the canaries are among other canaries. ``records`` is the number of
    records of the smaller neighbor. ``access`` defaults to the threat model's.
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
    """An upper bound by a proved formula evaluated in float64; ``inf`` for no bound."""
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
) -> dps.Finding:
    """Statistical lower bound from ``evidence``, valid with probability ``confidence`` in (0, 1).

    The other arguments default to the evidence's own values; ``delta`` to its ``at.delta``.

    Raises:
        ValueError: A bound on epsilon has no delta, or evidence of this kind yields no bound.
    """
    from dpspec.stats import binomial
    from dpspec.stats.attacks import evidence_tests

    arguments = evidence.at
    if evidence.quantity == "epsilon":
        delta = arguments.get("delta") if delta is None else delta
        if delta is None:
            raise ValueError(f"evidence {evidence.id!r} names no delta: give delta")
        value = evidence_tests.epsilon_lower(evidence, delta, confidence)
        arguments = dps.FrozenMap(
            {"delta": delta, **{key: value for key, value in arguments.items() if key != "delta"}}
        )
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
        at=arguments,
        scope=evidence.scope,
        assumptions=evidence.assumptions if assumptions is None else tuple(assumptions),
        confidence=confidence,
    )


_HOW = {
    "measured": "noise and sensitivity measured on released models; rate and minimum noise as logged",
    "reported": "noise, sensitivity and rate as logged by the backend",
}

_SAMPLED_GAUSSIAN = dps.Assumption(
    name="sampled-gaussian-steps",
    status="unchecked",
    text="each step is a Poisson sample with Gaussian noise at the measured values, equal for all records, and the "
    "number of steps is the declared one",
)


def epsilon_as_run(
    spec: dps.Spec,
    trials: Sequence[dps.Trial],
    epsilons: Callable[[Sequence[dps.Phase], int, Sequence[float]], Sequence[Interval]],
) -> Iterator[dps.Finding]:
    """Interval of the executed run's epsilon for each group size and delta, by two methods.

    ``epsilons`` computes epsilon of steps with given phases and group size, at each delta. Findings have the upper end
    as ``value`` (``inf`` if unbounded) and the lower end as ``lower``; without a measurement, there is one finding with
    the assumption ``not-measured``.
    """
    from dpspec.stats import as_run

    assert spec.audit is not None
    confidence = spec.audit.confidence

    def finding(
        executed: Ran, value: float, lower: float | None, arguments: dict[str, dps.Json], assumption: dps.Assumption
    ) -> dps.Finding:
        return dps.Finding(
            quantity=AS_RUN,
            value=value,
            lower=lower,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap(arguments),
            scope=executed_scope(spec, adversary="gradient"),
            method=_HOW[executed.reading],
            source="conformance's intervals, composed",
            assumptions=(assumption,),
            confidence=confidence,
            privacy=spec.data_privacy,
        )

    for executed in as_run.ran(spec.phases, [trial.evidence for trial in trials], confidence):
        if executed.missing:
            missing = dps.Assumption(name="not-measured", status="unchecked", text="; ".join(executed.missing))
            yield finding(executed, math.inf, None, {}, missing)
            continue
        least, most = executed.least(spec.phases), executed.most(spec.phases)
        for size in spec.threat_model.group_size:
            deltas = claimed_deltas(spec, size)
            low = None if least is None else epsilons(least, size, deltas)
            high = None if most is None else epsilons(most, size, deltas)
            for index, delta in enumerate(deltas):
                upper = math.inf if high is None else high[index].upper
                lower = 0.0 if low is None else low[index].lower
                arguments: dict[str, dps.Json] = {"delta": delta, "group_size": size}
                yield finding(executed, upper, lower, arguments, _SAMPLED_GAUSSIAN)


#: Delta of bounds without a claimed delta.
DEFAULT_DELTA = 1e-5

#: Additional deltas of the upper curve, for tests of attacks against the whole curve.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)

#: Deltas of a privacy profile. The success rates of an attacker at false-positive rates of 1 % and 10 % need the large
#: ones: from a small delta alone they would be overstated.
PROFILE_DELTAS = (*(0.99, 0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 3e-3), *(1e-3, 1e-4, 1e-5, 1e-6))


def profile(
    rows: Iterable[tuple[str, int, float, float]], *, rigor: dps.findings.Rigor, source: str, name: str = "profile"
) -> dps.Series:
    """Series of the upper bounds (adjacency, group size, epsilon, delta), from which reports compute risk."""
    return series(
        name,
        "Delta against epsilon",
        columns_of(("adjacency", "group_size", "epsilon", "delta"), rows),
        units={"group_size": "records"},
        rigor=rigor,
        source=source,
        x="epsilon",
        y=["delta"],
        by="group_size",
        log=["y"],
        upper=["epsilon"],
    )


def claimed_deltas(
    spec: dps.Spec, group_size: int | None = None, *, default: float | None = DEFAULT_DELTA
) -> list[float]:
    """Distinct deltas in (0, 1) of claims about groups of ``group_size``, ascending; else of all claims.

    ``default`` is the only delta if claims have none; None for an empty result.
    """
    named, of_other_sizes = set[float](), set[float]()
    for claim in spec.claims:
        if claim.kind != "metric" and "delta" in claim.options:
            (named if group_size in (None, claim.group_size) else of_other_sizes).add(float(claim["delta"]))
    deltas = named or of_other_sizes
    return sorted(deltas) if deltas or default is None else [default]


def claimed_fprs(claims: Iterable[dps.Claim]) -> list[float]:
    """Distinct false-positive rates in (0, 1] of claims, at ``fpr`` or in ``points``, ascending."""
    fprs = set[float]()
    for claim in claims:
        for point in (claim.options, *claim.options.get("points", ())) if claim.kind != "metric" else ():
            if point.get("fpr"):
                fprs.add(float(point["fpr"]))
    return sorted(fprs)


def missing_key(key: str, block: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """Error ``missing-key``: ``block`` lacks ``key``."""
    message = f"missing key {key!r} in {dps.format_path(block)}"
    return dps.Diagnostic(code="missing-key", message=message, path=block, help=help)


def unsupported(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """Error ``unsupported``: the mechanism's theory or attack does not cover the value at ``path``."""
    return dps.Diagnostic(code="unsupported", message=message, path=path, help=help)


def bad_value(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """Error ``bad-value``: the value at ``path`` is out of range given the data or other keys."""
    return dps.Diagnostic(code="bad-value", message=message, path=path, help=help)


def other_scheme(
    spec: dps.Spec, number: int, covered: Collection[str], message: str, help: str | None = None
) -> Iterator[dps.Diagnostic]:
    """Error ``unsupported`` if phase ``number`` uses a sampling scheme outside ``covered``.

    ``message`` contains ``{scheme}``, or ``{batches}`` for 'shuffled batches'.
    """
    sampling = spec.phases[number].sampling
    scheme = sampling.scheme
    if scheme not in covered:
        batches = "batches of a fixed size" if sampling.is_fixed else f"{scheme} batches"
        path = dps.in_phase(spec, number, "sampling", "scheme")
        yield unsupported(message.format(scheme=scheme, batches=batches), path, help)


@old_arguments("dpspec.kit.too_little_noise")
def too_little_noise(noise_multiplier: float, path: dps.Path) -> Iterator[dps.Diagnostic]:
    """Error ``bad-value`` at ``path`` for a ``noise_multiplier`` that is positive and bounds nothing."""
    if 0.0 < noise_multiplier < LEAST_NOISE_MULTIPLIER:
        message = (
            f"noise must be 0 or at least {LEAST_NOISE_MULTIPLIER:g} times the clip norm, got {noise_multiplier:g}"
        )
        yield bad_value(message, path, "use more noise: below this epsilon is meaningless")


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """End of a message: ``; did you mean 'poisson'? (valid: poisson, fixed)``."""
    return f"{suggestion(closest(word, valid))} (valid: {', '.join(valid)})"
