"""Search for the minimum noise, the maximum number of steps or the largest group for which claims are proved.

The search computes bounds and trains nothing. Every tried value is put into the spec, validated, bounded and judged;
the returned values were judged, at both ends of the bracket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpspec.accounting import NeverHoldsError, find_boundary
from dpspec.contract import Spec
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event
from dpspec.contract.frozen import canonical_json
from dpspec.engine.evaluations import (
    Evaluations,
    Point,
    ValidIntegers,
    changes,
    crossing,
    trend,
    valid_beyond,
    valid_integers,
)
from dpspec.engine.judging.inequalities import statement
from dpspec.errors import UsageError
from dpspec.language.numeric_values import NumericKey, dotted, given_numbers, numeric_key, with_value
from dpspec.language.tree import source_file
from dpspec.text import closest, did_you_mean, joined, listed, quoted

#: Relative precision of real values.
PRECISION = 1e-3


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The result for one spec, or one cell of its matrix.

    ``proved`` is the last value at which all claims are proved, ``unproved`` the next valid integer or a real value
    within the precision; None if all are proved up to the limit. Without ``proved``, it is the limit that was tried.
    ``valid_beyond`` is a known valid value beyond the ``limit``. ``contradictions`` are tried values that contradict a
    monotonic bound.
    """

    name: str
    source: str
    cell: tuple[str, ...]
    key: NumericKey
    claims: tuple[str, ...]
    more_helps: bool
    proved: Point | None
    unproved: Point | None
    limit: str
    evaluations: int
    contradictions: tuple[float, ...] = ()
    valid_beyond: float | None = None

    @property
    def complete(self) -> bool:
        return self.proved is not None and self.valid_beyond is None

    @property
    def private(self) -> bool:
        return any(point.private for point in (self.proved, self.unproved) if point is not None)


def calibrate_specs(
    specs: Sequence[Spec],
    catalog: Catalog,
    *,
    vary: str,
    claims: Sequence[str] = (),
    relative: float = PRECISION,
    listeners: Sequence[Callable[[Event], None]] = (),
) -> tuple[Calibration, ...]:
    """:func:`calibrate_spec` for each spec, once for cells of a matrix that differ in the varied key only."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    calibrations: list[Calibration] = []
    seen: set[tuple[str, str]] = set()
    for spec in specs:
        key = numeric_key(spec, catalog, vary)
        others = with_value(spec, key, key.low)
        same = (source_file(spec.origin), canonical_json(others))
        if same in seen:
            continue
        seen.add(same)
        calibrations.append(calibrate_spec(spec, catalog, vary=vary, claims=claims, relative=relative, emit=emit))
    return tuple(calibrations)


def calibrate_spec(
    spec: Spec,
    catalog: Catalog,
    *,
    vary: str,
    claims: Sequence[str] = (),
    relative: float = PRECISION,
    emit: Callable[[Event], None] | None = None,
) -> Calibration:
    """Find the last value of the number ``vary`` at which the chosen claims are proved, without the audit block."""
    chosen = _chosen(spec, claims)
    key = numeric_key(spec, catalog, vary)
    if key.value is not None and not key.low <= key.value <= key.high:
        raise UsageError(f"{key.place} is {key.spelling(key.value)}; only numbers from 0 up can be varied")
    evaluations = Evaluations(spec, catalog, key, chosen, emit)
    positive = key.value is not None and key.value > 0
    start = float(key.value or 0) if positive else min(max(1.0, key.low), key.high)
    evaluations.candidate(start)  # reports errors of the spec itself

    def is_valid(value: float) -> bool:
        return not evaluations.wrong(value)

    def guess(one: float, other: float) -> float | None:
        value = crossing(evaluations.at(valid.value(one)), evaluations.at(valid.value(other)))
        return None if value is None else valid.index(value)

    valid = ValidIntegers()
    if key.integer:
        valid = valid_integers(int(start), key.low, key.high, is_valid, spec.to_json()["mechanism"])
    low, high, limits = _valid_range(evaluations, start, valid)
    more_helps = trend(evaluations, start, low, high, valid)
    proved: Point | None = None
    unproved: Point | None = None
    contradictions: tuple[float, ...] = ()
    limit = ""
    if more_helps is None:
        unproved = evaluations.at(start)
        if unproved.proved or any(v.provable is not None for v in unproved.verdicts):
            sizes = key.place == "threat_model.group_size"
            others = [name for name in given_numbers(spec, catalog) if name.startswith("mechanism.")]
            other = listed(name for name in others if name != key.place)
            more = "each claim states its group size: claims.ID.group_size" if sizes else f"vary another: {other}"
            of = f"bound for {chosen[0]} does" if len(chosen) == 1 else f"bounds for {joined(chosen)} do"
            raise UsageError(f"the {of} not depend on {key.place}; {more}")
    else:
        worst, best = limits if more_helps else limits[::-1]
        try:
            boundary = find_boundary(
                lambda index: evaluations.at(valid.value(index)).proved,
                low,
                high,
                increasing=more_helps,
                integer=key.integer,
                relative=relative,
                start=valid.index(start),
                guess=guess,
            )
        except NeverHoldsError as error:
            unproved, limit = evaluations.at(valid.value(error.limit)), best
            gaining, losing = changes(evaluations, evaluations.at(start), unproved)
            turned = losing if more_helps else gaining
            contradictions = tuple(map(valid.value, error.contradictions)) or ((unproved.value,) if turned else ())
        else:
            proved = evaluations.at(valid.value(boundary.value))
            contradictions = tuple(map(valid.value, boundary.contradictions))
            if boundary.fails_at is None:
                limit = worst
            else:
                unproved = evaluations.at(valid.value(boundary.fails_at))
    upwards = limit != "" and limit == limits[1]
    beyond = None
    if key.integer and upwards:
        beyond = valid_beyond(valid.value(high), key.high, is_valid, spec.to_json()["mechanism"])
    cell = {p: canonical_json(value) for p, value in spec.cell.items() if p not in (key.place, dotted(key.path))}
    name = spec.name
    if len(cell) < len(spec.cell):
        labels = ", ".join(f"{place.rpartition('.')[2]}={value}" for place, value in cell.items())
        name = f"{spec.document['name']}[{labels}]" if labels else str(spec.document["name"])
    return Calibration(
        name=name,
        source=source_file(spec.origin),
        cell=tuple(f"{place}={value}" for place, value in cell.items()),
        key=key,
        claims=chosen,
        more_helps=bool(more_helps),
        proved=proved,
        unproved=unproved,
        limit=limit,
        evaluations=len(evaluations.points),
        contradictions=contradictions,
        valid_beyond=beyond,
    )


def _chosen(spec: Spec, claims: Sequence[str]) -> tuple[str, ...]:
    about = {claim.id: claim for claim in spec.claims}
    for name in claims:
        if name not in about:
            suggestion = did_you_mean(closest(name, about))
            raise UsageError(f"spec {quoted(spec.name)} has no claim {quoted(name)}{suggestion} ({listed(about)})")
        if about[name].kind == "metric":
            raise UsageError(f"claim {quoted(name)} is about a metric, which no bound proves")
    if claims:
        return tuple(dict.fromkeys(claims))
    chosen = tuple(c.id for c in spec.claims if statement(c).about_privacy and "proved" in c.expect)
    if not chosen:
        raise UsageError(
            f"spec {quoted(spec.name)} has no claim about privacy that is expected to be proved: choose by --claim"
        )
    return chosen


def _valid_range(evaluations: Evaluations, start: float, valid: ValidIntegers) -> tuple[float, float, tuple[str, str]]:
    """The first and the last index of the valid values around ``start``, and why the range ends there."""
    key = evaluations.key
    first = valid.index(start)
    ends: list[float] = []
    reasons: list[str] = []
    for limit in valid.limits(key.low, key.high):
        if not evaluations.wrong(valid.value(limit)):
            ends.append(limit)
            reasons.append(f"the range ends at {key.spelling(valid.value(limit))}")
            continue
        boundary = find_boundary(
            lambda index: not evaluations.wrong(valid.value(index)),
            min(first, limit),
            max(first, limit),
            increasing=limit < first,
            integer=key.integer,
            relative=1e-9,
            start=first,
        )
        ends.append(boundary.value)
        assert boundary.fails_at is not None  # the limit fails
        fails = valid.value(boundary.fails_at)
        reasons.append(f"{key.spelling(fails)} is not valid: {evaluations.wrong(fails)}")
    return ends[0], ends[1], (reasons[0], reasons[1])
