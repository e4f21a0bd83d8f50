"""Holds a value against a JSON Schema and tells every objection in our words, at its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpspec.contract import Diagnostic, Json, Path
from dpspec.spec.blocks import Plain
from dpspec.spec.messages import TEXTS, Problem, missing_one, otherwise
from dpspec.spec.normalise import validator_class


def problems(schema: Plain, value: Json, path: Path = ()) -> Iterator[Diagnostic]:
    """Everything that a schema objects to in a value that stands at ``path``, in our words."""
    root = _explicit(schema)
    told: set[Diagnostic] = set()
    for error in validator_class()(root).iter_errors(value):
        for diagnostic in _tell(error, root, path):
            if diagnostic not in told:  # the library objects once per missing key, each time naming them all
                told.add(diagnostic)
                yield diagnostic


def _explicit(schema: Plain) -> Plain:
    """The same schema with forbidden properties spelt ``{"not": {}}``: for ``false`` the library tells no path."""
    result: Plain = {}
    for keyword, inner in schema.items():
        if keyword in ("properties", "patternProperties"):
            result[keyword] = {k: _explicit(v) if isinstance(v, dict) else v or {"not": {}} for k, v in inner.items()}
        elif keyword in ("allOf", "anyOf"):
            result[keyword] = [_explicit(v) if isinstance(v, dict) else v for v in inner]
        elif keyword in ("then", "else", "items", "additionalProperties") and isinstance(inner, dict):
            result[keyword] = _explicit(inner)
        else:
            result[keyword] = inner
    return result


def _tell(error: Any, root: Plain, path: Path) -> Iterator[Diagnostic]:
    problem = Problem(
        keyword=error.validator,
        wanted=error.validator_value,
        value=error.instance,
        path=(*path, *error.absolute_path),
        schema=error.schema,
        root=root,
        schema_path=tuple(error.absolute_schema_path),
        branches=tuple(error.context or ()),
        whole=not error.absolute_path,
    )
    if problem.keyword == "anyOf":
        yield from _best_branch(problem, path)
    else:
        yield from TEXTS.get(problem.keyword, otherwise)(problem)


def _best_branch(p: Problem, path: Path) -> Iterator[Diagnostic]:
    """Of several alternatives that all fail, the one that the value was most likely meant to be."""
    if p.branches and all(error.validator == "required" for error in p.branches):
        yield from missing_one(p, [key for error in p.branches for key in error.validator_value])
        return
    branches: dict[int, list[Any]] = {}
    for error in p.branches:
        branches.setdefault(error.schema_path[0], []).append(error)
    best = min(branches.values(), key=lambda found: (any(_of_type(e) for e in found), len(found)), default=[])
    for error in best:
        yield from _tell(error, p.root, path)


def _of_type(error: Any) -> bool:
    return error.validator == "type" and not error.path
