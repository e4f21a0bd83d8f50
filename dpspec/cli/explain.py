"""``dpspec explain``: the meaning of a diagnostic code, a key or kind of a spec, or a name in a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.output import emit, page_width
from dpspec.contract.attacks import Canary, Score
from dpspec.errors import ExitCode, UsageError
from dpspec.text import close_matches, joined, plain, quoted

if TYPE_CHECKING:
    from dpspec.contract.catalog import Offered
    from dpspec.language.blocks import Plain

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
}

#: The largest integer of any spec, which is not a limit of a key.
_ANY = 2**63 - 1

_NAMES = {"object": "map", "array": "list", "boolean": "true | false"}


@dataclass(frozen=True)
class Condition:
    path: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} is {joined(self.values, 'or')}"


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a spec, which exists if all ``conditions`` hold. Paths do not contain list indices."""

    path: str
    type: str
    description: str
    conditions: tuple[Condition, ...]


def keys(schema: Plain) -> Iterator[Key]:
    """Keys of a schema without references, parents first, without conditional repetitions of an unconditional key."""
    seen: set[Key] = set()
    always: dict[str, str] = {}
    for key in _walk(schema, "", ()):
        if not key.conditions:
            always[key.path] = key.description
        elif key.path in always and key.description in ("", always[key.path]):
            continue
        if key not in seen:
            seen.add(key)
            yield key


def find(name: str, known: Sequence[Key]) -> list[Key]:
    exact = [key for key in known if key.path == name]
    return exact or [key for key in known if key.path.endswith(f".{name}")]


def choices(key: Key) -> tuple[str, ...]:
    first = key.type.partition(";")[0]
    return tuple(first.split(" | ")) if " | " in first else ()


def _walk(node: Plain, path: str, conditions: tuple[Condition, ...]) -> Iterator[Key]:
    for name, inner in node.get("properties", {}).items():
        if not isinstance(inner, dict):
            continue
        place = f"{path}.{name}" if path else name
        if set(inner) - {"const"} or not conditions:
            text = _type_of(inner, required=name in node.get("required", ()))
            yield Key(path=place, type=text, description=inner.get("description", ""), conditions=conditions)
        yield from _walk(inner, place, conditions)
    for keyword in ("allOf", "anyOf", "oneOf", "items", "additionalProperties", "else"):
        parts = node.get(keyword)
        for part in parts if isinstance(parts, list | tuple) else (parts,):
            if isinstance(part, dict):
                yield from _walk(part, path, conditions)
    if isinstance(node.get("then"), dict):
        yield from _walk(node["then"], path, (*conditions, *_condition(node.get("if", {}), path)))


def _condition(test: Plain, path: str) -> Iterator[Condition]:
    for name, part in test.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        if "const" in part or "enum" in part:
            yield Condition(place, tuple(map(str, [part["const"]] if "const" in part else part["enum"])))
        else:
            yield from _condition(part, place)


def _type_of(node: Plain, *, required: bool) -> str:
    """``number, above 0, at most 1; required``."""
    from dpspec.reporters.labels import value

    parts = [_shape(node)]
    for keyword, words in _LIMITS.items():
        limit = node.get(keyword, _ANY)
        if limit == 1 and keyword in ("minLength", "minItems"):
            parts.append("not empty")
        elif limit == 1 and keyword in ("maxLength", "maxItems"):
            parts.append(words.format(1).removesuffix("s"))
        elif limit != _ANY:
            parts.append(words.format(value(limit)))
    text = ", ".join(parts)
    if required:
        return f"{text}; required"
    return f"{text}; default {value(node['default']) or 'empty'}" if "default" in node else text


def _shape(node: Plain) -> str:
    from dpspec.reporters.labels import value

    if "const" in node:
        return f"always {value(node['const'])}"
    if "enum" in node:
        return " | ".join(value(choice) for choice in node["enum"])
    alternatives = node.get("anyOf") or node.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(map(_shape, alternatives)))
    kind = node.get("type", "any value")
    name = " or ".join(_NAMES.get(one, one) for one in (kind if isinstance(kind, list) else [str(kind)]))
    return f"list of {_shape(node['items'])}" if name == "list" and isinstance(node.get("items"), dict) else name


#: The values of conditions on the same paths, in the order of the paths.
_Case = tuple[tuple[str, ...], ...]


def alike(keys: Iterable[Key]) -> list[list[Key]]:
    """Groups of keys with equal path, type and description."""
    groups: dict[tuple[str, str, str], list[Key]] = {}
    for key in keys:
        groups.setdefault((key.path, key.type, key.description), []).append(key)
    return list(groups.values())


def when(keys: Sequence[Key], known: Sequence[Key]) -> list[tuple[Condition, ...]]:
    """Alternatives of conditions of keys of one path; those that hold for all ``known`` kinds are dropped."""

    def cases(some: Sequence[Key]) -> dict[tuple[str, ...], list[_Case]]:
        found: dict[tuple[str, ...], list[_Case]] = {}
        for key in some:
            found.setdefault(tuple(c.path for c in key.conditions), []).append(tuple(c.values for c in key.conditions))
        return found

    every = cases(known)
    alternatives: list[tuple[Condition, ...]] = []
    for paths, own in cases(keys).items():
        alternatives += _factored(paths, list(dict.fromkeys(own)), set(every.get(paths, ())))
    return alternatives


def _factored(paths: tuple[str, ...], cases: list[_Case], every: set[_Case]) -> list[tuple[Condition, ...]]:
    for place in range(len(paths)):
        without = {case: case[:place] + case[place + 1 :] for case in (*cases, *every)}
        others = dict.fromkeys(without[case] for case in cases)
        if {case for case in every if without[case] in others} == set(cases):
            rest = {without[case] for case in every}
            return _factored(paths[:place] + paths[place + 1 :], list(others), rest)
    options = [list(dict.fromkeys(case[place] for case in cases)) for place in range(len(paths))]
    if every & set(product(*options)) == set(cases):
        cases = [tuple(tuple(dict.fromkeys(chain(*values))) for values in options)]
    return [tuple(map(Condition, paths, case)) for case in cases]


#: The providers' families in the catalog, the name of each, and the key that selects a kind.
_FAMILIES = (
    ("mechanisms", "mechanism kind", "mechanism.kind"),
    ("datasets", "data kind", "data.kind"),
    ("models", "model kind", "model.kind"),
    ("backends", "backend kind", "training.backend"),
    ("canaries", "canary", "audit.canary.kind"),
    ("scores", "score", "audit.score"),
    ("reporters", "report format", ""),
)

#: Shorter words are not searched in descriptions.
_SHORTEST = 4


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CODE|KEY|KIND|NAME",
            help="A diagnostic code (unknown-key), key (mechanism.noise_multiplier), kind (group, csv, approx-dp), "
            "choice (all-iterates), verdict (open, verdicts), assumption, channel or check (one-record).",
        ),
    ],
) -> int:
    """Explain a diagnostic code, a key, kind or choice of a spec, or a name in a report."""
    from dpspec.language.blocks import reference
    from dpspec.language.diagnostics import CODES
    from dpspec.language.diagnostics import explain as explain_code
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.labels import VERDICTS
    from dpspec.reporters.phrases import printed_names

    catalog = load_catalog()
    all_keys = list(keys(reference(catalog)))
    code = explain_code(what)
    blocks = []
    if code is not None:  # examples are indented and unchanged
        lines = code.rstrip().split("\n")
        blocks.append("\n".join(line if line.startswith(" ") else fill(line, page_width()) for line in lines))
    for field, name, chooser in _FAMILIES:
        if what in getattr(catalog, field):
            blocks.append(_provider(name, chooser, what, getattr(catalog, field)[what], all_keys))
    verdicts = [verdict for verdict in VERDICTS if what in ("verdict", "verdicts", verdict)]
    blocks += [f"verdict {verdict}\n{_folded(VERDICTS[verdict])}" for verdict in verdicts]
    claims = _of_kind("claims.kind", what, all_keys)
    if claims:
        blocks.append(f"claim kind {what}\n\n{_listed(claims)}")
    blocks += [_key(cases, all_keys) for cases in alike(find(what, all_keys))]
    names = {} if code is not None or "." in what else printed_names(catalog)
    for head, *lines in (block.split("\n") for block in names.get(what, ())):
        blocks.append("\n".join([head, *map(_folded, lines)]))
    if not blocks:  # keys with a choice that includes the word, else string keys whose description names it
        word = re.compile(rf"(?<![\w-]){re.escape(what)}(?![\w-])")
        chosen = [key for key in all_keys if what in choices(key)]
        named = [key for key in all_keys if key.type.startswith("string") and word.search(key.description)]
        found = chosen or (named if len(what) >= _SHORTEST else [])
        blocks += [_key([key], ()) for key in {k.path: replace(k, conditions=()) for k in found}.values()]
    if not blocks:
        kinds = [kind for field, *_ in _FAMILIES for kind in getattr(catalog, field)]
        paths = [key.path for key in all_keys]
        lasts = [path.rpartition(".")[2] for path in paths]
        values = [choice for key in all_keys for choice in choices(key)]
        close = [
            quoted(name)
            for name in close_matches(what, [*CODES, *kinds, *VERDICTS, *names, *values, *lasts, *paths], 3)
        ]
        suggestion = f"; did you mean {joined(close, 'or')}?" if close else ""
        raise UsageError(f"unknown code, key, kind, choice or name in a report {quoted(what)}{suggestion}")
    emit("\n\n".join(blocks))
    return ExitCode.OK


def _provider(name: str, chooser: str, kind: str, offered: Offered, known: Sequence[Key]) -> str:
    provider = offered.provider
    lines = [f"{name} {kind}, by {offered.distribution} {offered.version}", _folded(provider.summary)]
    if isinstance(provider, Canary | Score):
        lines += [_folded(text) for text in (*_needs(provider), f"Chosen by {chooser}: {kind}")]
        block = "audit.canary" if isinstance(provider, Canary) else "audit.scoring"
        for key, schema in provider.schema.get("properties", {}).items():
            lines.append(f"\n{_folded(f'{block}.{key}')}\n{_folded(schema['description'], indent=8)}")
    if hasattr(provider, "claims"):
        lines.append(_folded(f"Claims that it can judge: {', '.join(sorted(provider.claims))}"))
    if hasattr(provider, "capabilities"):
        lines.append(_folded(f"Capabilities: {', '.join(sorted(provider.capabilities))}"))
    own = [] if isinstance(provider, Canary | Score) else _of_kind(chooser, kind, known)
    return "\n".join([*lines, f"\n{_listed(own)}"] if own else lines)


def _needs(provider: Canary | Score) -> Iterator[str]:
    if isinstance(provider, Score):
        yield "It uses the first and the last model and the data, and no inclusion bit that it guesses."
        if provider.learns:
            yield "It learns from half of the canaries and their inclusion bits; it guesses the other half."
        if provider.gradients:
            yield "It needs an optimizer with invertible updates, and memory for the gradients of all canaries."
        if provider.models:
            yield f"It trains {provider.models} additional models per run, and supports one-run attacks only."
        return
    if provider.space == "gradient":
        yield "Space gradient: it needs a backend with the capability gradient-canaries."
    else:
        yield "Space input: records among the training records, with any backend."
    reads = "It reads the training records" if provider.reads_data else "It does not read the training records"
    yield f"{reads}, and no inclusion bit."


def _of_kind(chooser: str, kind: str, known: Sequence[Key]) -> list[Key]:
    block, chosen = chooser.partition(".")[0], Condition(chooser, (kind,))
    own = [key for key in known if chosen in key.conditions and key.path.startswith(f"{block}.")]
    return list({(key.path, key.type, key.description): key for key in own}.values())


def _listed(keys: Sequence[Key]) -> str:
    """Without the keys of maps in a list."""
    lists = tuple(f"{key.path}." for key in keys if key.type.startswith("list of map"))
    lines = []
    for key in keys:
        if not key.path.startswith(lists):
            lines += [_folded(f"{key.path}: {key.type}", hang=4), _folded(key.description, indent=8)]
    return "\n".join(lines)


def _key(cases: Sequence[Key], known: Sequence[Key]) -> str:
    key = cases[0]
    lines = [key.path, _folded(key.type)]
    if key.description:
        lines.append(_folded(key.description))
    lines += [_folded(f"where {' and '.join(map(str, conditions))}") for conditions in when(cases, known) if conditions]
    below = {}
    for inner in known:  # keys that exist for all choices inside this one: ``data.kind``, not ``data.path``
        if inner.path.rpartition(".")[0] == key.path and any(
            set(case.conditions) <= set(inner.conditions)
            and not any(c.path.startswith(f"{key.path}.") for c in set(inner.conditions) - set(case.conditions))
            for case in cases
        ):
            below[inner.path] = inner
    if below:
        lines.append(f"\n{_listed(list(below.values()))}")
    return "\n".join(lines)


def _folded(text: str, *, indent: int = 4, hang: int = 0) -> str:
    first, rest = " " * indent, " " * (indent + hang)
    return fill(plain(text), page_width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
