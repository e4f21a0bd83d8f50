"""Several results in one report. Each keeps its own family of tests.

A joined result has ``parts``: the values of each original result without its audits. ``verify`` and ``redact`` split it
into the original results.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from dpspec.contract import FrozenMap
from dpspec.engine.results.decimals import exact
from dpspec.engine.results.result import Part, Result


def join(results: Sequence[tuple[str, Result]]) -> Result:
    """One result of several, each with the name of its file; a single one is returned unchanged.

    Files distinguish audits of equal names. The confidence is the union bound: 1 less the sum of the error levels, at
    least 0.
    """
    if len(results) == 1:
        return results[0][1]
    parts = [part for source, result in results for part in _parts(source, result)]
    audits = [audit for _, result in results for audit in result.audits]
    names = [(name, part.source) for part in parts for name in part.names]
    times = Counter(name for name, _ in names)
    confidence = float(max(1 - sum(1 - Decimal(repr(part.confidence)) for part in parts), Decimal(0)))
    together = f"at confidence {exact(confidence)}" if confidence > 0.0 else "at no confidence that could be stated"
    note = (
        f"{len(parts)} results are shown side by side. Each was judged by itself, its claims and tests as one family; "
        f"the statements of all of them hold together {together}."
    )
    first, *others = [part.environment for part in parts]
    shared = {k: v for k, v in first.items() if k != "command" and all(other.get(k) == v for other in others)}
    return Result(
        audits=tuple(
            dataclasses.replace(audit, name=name if times[name] == 1 else f"{name} ({source})")
            for audit, (name, source) in zip(audits, names, strict=True)
        ),
        confidence=confidence,
        created=max(part.created for part in parts),
        environment=FrozenMap(shared),
        notes=(note, *dict.fromkeys(own for part in parts for own in part.notes)),
        parts=tuple(parts),
    )


def split(result: Result) -> tuple[Result, ...]:
    if not result.parts:
        return (result,)
    return tuple(
        dataclasses.replace(
            part,
            audits=tuple(
                dataclasses.replace(audit, name=name) for audit, name in zip(part.audits, whole.names, strict=True)
            ),
        )
        for part, whole in zip(apart(result), result.parts, strict=True)
    )


def apart(result: Result) -> tuple[Result, ...]:
    """Like :func:`split`, with the audits' names in the joined result."""
    if not result.parts:
        return (result,)
    found, start = [], 0
    for part in result.parts:
        audits = result.audits[start : start + len(part.names)]
        values = {field: getattr(part, field) for field in ("confidence", "created", "environment", "notes")}
        found.append(Result(audits=audits, **values))
        start += len(part.names)
    return tuple(found)


def sources(result: Result) -> tuple[str, ...]:
    """The file of each audit's result; empty if there is only one result."""
    return tuple(part.source for part in result.parts for _ in part.names) or ("",) * len(result.audits)


def _parts(source: str, result: Result) -> tuple[Part, ...]:
    if result.parts:
        return tuple(dataclasses.replace(part, source=f"{source}: {part.source}") for part in result.parts)
    return (
        Part(
            source=source,
            names=tuple(audit.name for audit in result.audits),
            confidence=result.confidence,
            created=result.created,
            environment=result.environment,
            notes=result.notes,
        ),
    )
