"""``dpspec explain``: the meaning of a diagnostic code, a key or kind of a spec, or a name in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dpspec.cli.output import emit, page_width
from dpspec.errors import ExitCode, UsageError
from dpspec.text import close_matches, joined, plain, quoted

if TYPE_CHECKING:
    from dpspec.contract.catalog import Catalog, Offered
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
_FAMILIES = {
    "mechanisms": ("mechanism kind", "mechanism.kind"),
    "datasets": ("data kind", "data.kind"),
    "models": ("model kind", "model.kind"),
    "backends": ("backend kind", "training.backend"),
    "canaries": ("canary", "audit.canary.kind"),
    "scores": ("score", "audit.score"),
    "reporters": ("report format", ""),
}

#: Blocks with the keys of canaries and scores.
_BLOCKS = {"audit.canary.kind": "canary", "audit.score": "scoring"}

#: Fields of providers, and the sentence about a value that is not empty.
_SAID = {
    "space": "Space {}.",
    "reads_data": "It reads the training records.",
    "learns": "It learns from half of the canaries and their inclusion bits; it guesses the other half.",
    "gradients": "It needs an optimizer with invertible updates, and memory for the gradients of all canaries.",
    "models": "It trains {} additional models per run, and supports one-run attacks only.",
    "claims": "Claims that it can judge: {}",
    "capabilities": "Capabilities: {}",
}

#: Words with the functions that explain them.
_Entries: TypeAlias = "dict[str, list[Callable[[], str]]]"


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
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.phrases import printed_names

    catalog = load_catalog()
    known = list(keys(reference(catalog)))
    entries = _entries(catalog, known)
    if what not in CODES and "." not in what:  # importing the checks takes longest
        for name, blocks in printed_names(catalog).items():
            entries.setdefault(name, []).extend(partial(_folded_below, block) for block in blocks)
    choices: _Entries = {}
    for key in {key.path: replace(key, conditions=()) for key in known}.values():
        values = key.type.partition(";")[0].split(" | ")
        for value in values if len(values) > 1 else ():
            choices.setdefault(value, []).append(partial(_key, [key], ()))
    found = entries.get(what) or choices.get(what)
    if found is None:
        close = joined([quoted(word) for word in close_matches(what, [*entries, *choices], 3)], "or")
        suggestion = f"; did you mean {close}?" if close else ""
        raise UsageError(f"unknown code, key, kind, choice or name in a report {quoted(what)}{suggestion}")
    emit("\n\n".join(text() for text in found))
    return ExitCode.OK


def _entries(catalog: Catalog, known: Sequence[Key]) -> _Entries:
    from dpspec.language import diagnostics
    from dpspec.reporters.labels import VERDICTS

    entries: _Entries = {code: [partial(diagnostics.explain, code, page_width())] for code in diagnostics.CODES}
    for field, (name, chooser) in _FAMILIES.items():
        for kind, offered in getattr(catalog, field).items():
            entries.setdefault(kind, []).append(partial(_provider, name, chooser, kind, offered, known))
    for verdict, text in VERDICTS.items():
        for word in (verdict, "verdict", "verdicts"):
            entries.setdefault(word, []).append(partial(_folded_below, f"verdict {verdict}\n{text}"))
    for kind in dict.fromkeys(c.values[0] for key in known for c in key.conditions if c.path == "claims.kind"):
        text = f"claim kind {kind}\n\n{_listed(_of_kind('claims.kind', kind, known))}"
        entries.setdefault(kind, []).append(partial(str, text))
    paths = {key.path for key in known}
    for group in alike(known):  # by path, or by its end if that is not another path
        parts = group[0].path.split(".")
        for word in {".".join(parts[start:]) for start in range(len(parts))}:
            if word == group[0].path or word not in paths:
                entries.setdefault(word, []).append(partial(_key, group, known))
    return entries


def _folded_below(block: str) -> str:
    head, *lines = block.split("\n")
    return "\n".join([head, *map(_folded, lines)])


def _provider(name: str, chooser: str, kind: str, offered: Offered, known: Sequence[Key]) -> str:
    provider = offered.provider
    lines = [f"{name} {kind}, by {offered.distribution} {offered.version}", _folded(provider.summary)]
    for field, text in _SAID.items():
        if value := getattr(provider, field, None):
            lines.append(_folded(text.format(", ".join(sorted(value)) if isinstance(value, frozenset) else value)))
    if chooser in _BLOCKS:
        lines.append(_folded(f"Chosen by {chooser}: {kind}"))
        own = list(keys({"properties": {"audit": {"properties": {_BLOCKS[chooser]: provider.schema}}}}))[2:]
    else:
        own = _of_kind(chooser, kind, known)
    return "\n".join([*lines, f"\n{_listed(own)}"] if own else lines)


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
