"""Schema fragments, options and claimed values of a mechanism's spec, and located errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

import dpspec.contract as dps
from dpspec import text


class Options:
    """Base class of a mechanism's options: frozen dataclasses that read a block of the spec.

    Every field is read from the key of its name and converted to the field's type: a number, a string, a boolean, a
    mapping, other options, or a tuple of these. Override :meth:`read` for other shapes. The same class reads specs and
    inputs of trials: ``MyOptions.of(spec.mechanism.options)`` and ``MyOptions.of(inputs["mechanism"])``.
    """

    @classmethod
    def read(cls, block: dps.FrozenMap) -> Self:
        """Read a block or a whole document. Optional keys may be missing."""
        return cls.fill(block)

    @classmethod
    def fill(cls, block: Mapping[str, dps.Json], **values: object) -> Self:
        """Options with ``values``, and the other fields from the keys of ``block``."""
        hints = get_type_hints(cls)
        for field in fields(cls):  # type: ignore[arg-type]
            if field.name not in values and block.get(field.name) is not None:
                values[field.name] = _typed(hints[field.name], block[field.name])
        return cls(**values)

    @classmethod
    def of(cls, block: Mapping[str, dps.Json] | dps.Spec) -> Self:
        """Cached :meth:`read` of ``block`` or of a spec's whole document (``FrozenMap.typed``)."""
        block = block.document if isinstance(block, dps.Spec) else block
        return (block if isinstance(block, dps.FrozenMap) else dps.FrozenMap(block)).typed(cls.read)


def _typed(hint: Any, value: Any) -> Any:
    """Convert a value to the type ``hint`` of a field; a union converts to its first type."""
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        return tuple(_typed(get_args(hint)[0], item) for item in value)
    if hint in (Any, dps.FrozenMap) or get_origin(hint) is Literal:
        return value
    kind: Any = hint.of if issubclass(hint, Options) else hint
    return kind(value)


#: Delta of bounds without a claimed delta.
DEFAULT_DELTA = 1e-5

#: Additional deltas of the upper curve, for tests of attacks against the whole curve.
CURVE_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)


def claimed_deltas(
    spec: dps.Spec, group_size: int | None = None, *, default: float | None = DEFAULT_DELTA
) -> list[float]:
    """Distinct deltas in (0, 1) of claims about groups of ``group_size``, ascending; else of all claims.

    ``default`` is the only delta if claims have none; None for an empty result.
    """
    named, others = set[float](), set[float]()
    for claim in spec.claims:
        if claim.kind != "metric" and "delta" in claim.options:
            (named if group_size in (None, claim.group_size) else others).add(float(claim["delta"]))
    found = named or others
    return sorted(found) if found or default is None else [default]


def claimed_fprs(claims: Iterable[dps.Claim]) -> list[float]:
    """Distinct false-positive rates in (0, 1] of claims, at ``fpr`` or in ``points``, ascending."""
    found = set[float]()
    for claim in claims:
        for point in (claim.options, *claim.options.get("points", ())) if claim.kind != "metric" else ():
            if point.get("fpr"):
                found.add(float(point["fpr"]))
    return sorted(found)


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


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """End of a message: ``; did you mean 'poisson'? (valid: poisson, fixed)``."""
    return f"{text.did_you_mean(text.closest(word, valid))} (valid: {', '.join(valid)})"
