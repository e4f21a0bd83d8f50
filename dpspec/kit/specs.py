"""What a mechanism asks of a spec: the schema fragments of its keys, its options, what claims name, and refusals.

A refusal says subject, rule and fix, at the place in the spec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

import dpspec.contract as dps
from dpspec import text


def number(
    description: str,
    *,
    above: float | None = None,
    below: float | None = None,
    least: float | None = None,
    most: float | None = None,
    default: float | None = None,
) -> dict[str, dps.Json]:
    """A number: ``above`` and ``below`` exclusive, ``least`` and ``most`` inclusive. Without ``default`` required."""
    limits: dict[str, dps.Json] = {"exclusiveMinimum": above, "exclusiveMaximum": below}
    return _fragment({"type": "number", **limits, "minimum": least, "maximum": most, "default": default}, description)


def integer(
    description: str, *, least: int | None = None, most: int | None = None, default: int | None = None
) -> dict[str, dps.Json]:
    """A whole number from ``least`` to ``most``, both inclusive. Without ``default`` the key is required."""
    return _fragment({"type": "integer", "minimum": least, "maximum": most, "default": default}, description)


def flag(description: str, *, default: bool | None = None) -> dict[str, dps.Json]:
    """True or false. Without ``default`` the key is required."""
    return _fragment({"type": "boolean", "default": default}, description)


def choice(description: str, *values: str, default: str | None = None) -> dict[str, dps.Json]:
    """One of several words. Without ``default`` the key is required."""
    return _fragment({"enum": list(values), "default": default}, description)


def array(
    description: str,
    items: dict[str, dps.Json],
    *,
    least: int | None = None,
    most: int | None = None,
    unique: bool | None = None,
    default: Sequence[dps.Json] | None = None,
) -> dict[str, dps.Json]:
    """A list of ``least`` to ``most`` of ``items``; ``unique`` ones differ. Without ``default`` the key is required."""
    limits: dict[str, dps.Json] = {"minItems": least, "maxItems": most, "uniqueItems": unique, "default": default}
    return _fragment({"type": "array", "items": items, **limits}, description)


def block(
    description: str | None = None, required: Sequence[str] | None = None, /, **properties: dps.Json
) -> dict[str, dps.Json]:
    """Keys with a fragment each, and no others; those of ``required`` must be there."""
    shape: dict[str, dps.Json] = {"type": "object", "properties": properties, "required": required}
    return _fragment({**shape, "additionalProperties": False}, description)


def _fragment(keywords: dict[str, dps.Json], description: str | None) -> dict[str, dps.Json]:
    every = {**keywords, "description": description}
    return {key: value for key, value in every.items() if value is not None}


class Options(ABC):
    """The base of a mechanism's options: frozen dataclasses that say once how a block of the spec is read.

    Specs and the inputs of trials hold the same blocks, so that both are read by the same code:
    ``MyOptions.of(spec.mechanism.options)`` and ``MyOptions.of(inputs["mechanism"])``, or ``of(spec)`` and
    ``of(inputs)`` for the whole document. What is made of a block is kept with it (``FrozenMap.typed``), so that asking
    again costs nothing, and travels with no task.
    """

    @classmethod
    @abstractmethod
    def read(cls, block: dps.FrozenMap) -> Self:
        """From a block, or a whole document. Everything that the schema leaves optional may be absent."""

    @classmethod
    def of(cls, block: Mapping[str, dps.Json] | dps.Spec) -> Self:
        """The options of ``block``, or of a spec's whole document; :meth:`read` makes them when first asked for."""
        block = block.document if isinstance(block, dps.Spec) else block
        return (block if isinstance(block, dps.FrozenMap) else dps.FrozenMap(block)).typed(cls.read)


#: The delta of bounds where no claim names one.
DEFAULT_DELTA = 1e-5

#: Deltas at which the upper curve is computed besides, so that attacks are held against all of it.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)


def claimed_deltas(
    spec: dps.Spec, group_size: int | None = None, *, default: float | None = DEFAULT_DELTA
) -> list[float]:
    """The deltas in (0, 1) that claims name, each once, in ascending order; of whatever kind they are.

    group_size: only of claims about groups of this size, where there are any; of all claims otherwise.
    default: the one delta where no claim names any; None leaves the list empty then.
    """
    claims = [claim for claim in spec.claims if claim.kind != "metric" and "delta" in claim.options]
    named = {float(claim["delta"]) for claim in claims if group_size in (None, claim.group_size)}
    named = named or {float(claim["delta"]) for claim in claims}
    return sorted(named) if named or default is None else [default]


def claimed_fprs(claims: Iterable[dps.Claim]) -> list[float]:
    """The false-positive rates in (0, 1] that claims name, at ``fpr`` or in ``points``, each once, in ascending order.

    They are told by these keys and not by the claim's kind: a mechanism that bounds the true-positive rate at each of
    them bounds every kind of claim that speaks of rates.
    """
    every = [claim.options for claim in claims if claim.kind != "metric"]
    points = [point for options in every for point in (options, *options.get("points", ()))]
    return sorted({float(point["fpr"]) for point in points if "fpr" in point} - {0.0})


def missing_key(key: str, block: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """The error ``missing-key``: ``block`` lacks ``key``."""
    message = f"missing key {key!r} in {dps.format_path(block)}"
    return dps.Diagnostic(code="missing-key", message=message, path=block, help=help)


def unsupported(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """The error ``unsupported``: the mechanism's theory, or its attack, does not cover the value at ``path``."""
    return dps.Diagnostic(code="unsupported", message=message, path=path, help=help)


def bad_value(message: str, path: dps.Path, help: str | None = None) -> dps.Diagnostic:
    """The error ``bad-value``: what stands at ``path`` is out of range, beside the data or other keys."""
    return dps.Diagnostic(code="bad-value", message=message, path=path, help=help)


def other_scheme(
    spec: dps.Spec, number: int, covered: Collection[str], message: str, help: str | None = None
) -> Iterator[dps.Diagnostic]:
    """The error ``unsupported`` where phase ``number`` draws batches by a scheme that is not ``covered``.

    What is not listed is refused, so that a new scheme is covered by no mechanism that does not say so. ``message``
    says ``{scheme}``, or ``{batches}`` as in 'shuffled batches'.
    """
    scheme = spec.phases[number].sampling.scheme
    if scheme not in covered:
        batches = "batches of a fixed size" if scheme == "fixed" else f"{scheme} batches"
        path = dps.in_phase(spec, number, "sampling", "scheme")
        yield unsupported(message.format(scheme=scheme, batches=batches), path, help)


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """``; did you mean 'poisson'? (valid: poisson, fixed)``, or the valid words alone, for the end of a message."""
    return f"{text.did_you_mean(text.closest(word, valid))} (valid: {', '.join(valid)})"
