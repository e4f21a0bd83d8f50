"""``dpspec explain``: the meaning of a diagnostic code, a key or kind of a spec, or a name in a report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import load_project
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


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a spec. Paths do not contain list indices.

    A key without ``chooser`` always exists; otherwise it exists if the value of ``chooser`` is one of ``kinds``.
    ``where`` says so, and is empty if ``kinds`` are all that the chooser has. ``choices`` are its enumerated strings.
    """

    path: str
    type: str
    description: str
    chooser: str = ""
    kinds: tuple[str, ...] = ()
    where: str = ""
    choices: tuple[str, ...] = ()


def keys(schema: Plain) -> list[Key]:
    """Keys of a schema without references, parents first, without conditional repetitions of an unconditional key."""
    kinds: dict[Key, list[str]] = {}
    choices: dict[str, set[str]] = {}
    always: dict[str, str] = {}
    for key, chosen in _walk(schema, "", "", ()):
        if not key.chooser:
            always[key.path] = key.description
        elif key.path in always and key.description in ("", always[key.path]):
            continue
        kinds.setdefault(key, []).extend(chosen)
        choices.setdefault(key.chooser, set()).update(chosen)
    distinct_keys = []
    for key, repeated in kinds.items():
        key_kinds = tuple(dict.fromkeys(repeated))
        where = f"{key.chooser} is {joined(key_kinds, 'or')}" if set(key_kinds) != choices[key.chooser] else ""
        distinct_keys.append(replace(key, kinds=key_kinds, where=where))
    return distinct_keys


def _walk(node: Plain, path: str, chooser: str, kinds: tuple[str, ...]) -> Iterator[tuple[Key, tuple[str, ...]]]:
    """Keys with the kinds of the innermost condition."""
    for name, inner in node.get("properties", {}).items():
        if not isinstance(inner, dict):
            continue
        inner_path = f"{path}.{name}" if path else name
        if set(inner) - {"const"} or not chooser:
            text = _type_of(inner, required=name in node.get("required", ()))
            description, choices = inner.get("description", ""), tuple(_choices(inner))
            yield Key(path=inner_path, type=text, description=description, chooser=chooser, choices=choices), kinds
        yield from _walk(inner, inner_path, chooser, kinds)
    for keyword in ("allOf", "anyOf", "oneOf", "items", "additionalProperties", "else"):
        branches = node.get(keyword)
        for part in branches if isinstance(branches, list | tuple) else (branches,):
            if isinstance(part, dict):
                yield from _walk(part, path, chooser, kinds)
    if isinstance(node.get("then"), dict):
        yield from _walk(node["then"], path, *(_condition(node.get("if", {}), path) or (chooser, kinds)))


def _condition(test: Plain, path: str) -> tuple[str, tuple[str, ...]] | None:
    for name, part in test.get("properties", {}).items():
        inner_path = f"{path}.{name}" if path else name
        if "const" in part or "enum" in part:
            return inner_path, tuple(map(str, [part["const"]] if "const" in part else part["enum"]))
        if (condition := _condition(part, inner_path)) is not None:
            return condition
    return None


def _type_of(node: Plain, *, required: bool) -> str:
    """``number, above 0, at most 1; required``."""
    from dpspec.reporters.words import value

    descriptions = [_shape(node)]
    for keyword, phrase in _LIMITS.items():
        limit = node.get(keyword, _ANY)
        if limit == 1 and keyword in ("minLength", "minItems"):
            descriptions.append("not empty")
        elif limit != _ANY:
            descriptions.append(phrase.format(value(limit)))
    text = ", ".join(descriptions)
    default = f"; default {value(node['default']) or 'empty'}" if "default" in node else ""
    return f"{text}; required" if required else text + default


def _shape(node: Plain) -> str:
    from dpspec.reporters.words import value

    if "const" in node:
        return f"always {value(node['const'])}"
    if "enum" in node:
        return " | ".join(value(choice) for choice in node["enum"])
    alternatives = node.get("anyOf") or node.get("oneOf")
    if alternatives:
        return " or ".join(dict.fromkeys(map(_shape, alternatives)))
    kind = node.get("type", "any value")
    name = " or ".join(
        _NAMES.get(json_type, json_type) for json_type in (kind if isinstance(kind, list) else [str(kind)])
    )
    return f"list of {_shape(node['items'])}" if name == "list" and isinstance(node.get("items"), dict) else name


def _choices(node: Plain) -> Iterator[str]:
    yield from (choice for choice in node.get("enum", ()) if isinstance(choice, str))
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ()), node.get("items")):
        if isinstance(alternative, dict):
            yield from _choices(alternative)


#: The providers' families in the catalog, the name of each, and the key that selects a kind.
_FAMILIES = {
    "mechanisms": ("mechanism kind", "mechanism.kind"),
    "datasets": ("data kind", "data.kind"),
    "models": ("model kind", "model.kind"),
    "backends": ("backend kind", "training.backend"),
    "canaries": ("canary", "audit.canary.kind"),
    "scores": ("score", "audit.score"),
    "losses": ("loss", "training.loss.kind"),
    "attack_methods": ("attack method", ""),
    "reporters": ("report format", ""),
}

#: Blocks with the keys of canaries and scores.
_BLOCKS = {"audit.canary.kind": "canary", "audit.score": "scoring"}

#: Fields of providers, and the sentence about a value that is not empty.
_SAID = {
    "description": "In plain words: {}.",
    "space": "Space {}.",
    "reads_data": "It reads the training records.",
    "learns": "It learns from half of the canaries and their inclusion bits; it guesses the other half.",
    "gradients": "It needs an optimizer with invertible updates, and memory for the gradients of all canaries.",
    "models": "It trains {} additional models per run, and supports one-run attacks only.",
    "claims": "Claims that it can judge: {}",
    "capabilities": "Capabilities: {}",
}


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CODE|KEY|KIND|NAME",
            help="A diagnostic code (unknown-key), key (mechanism.noise_multiplier), kind (group, csv, approx-dp), "
            "verdict (open, verdicts), term (epsilon, lower bound), assumption, channel, check or rule (one-record).",
        ),
    ],
) -> int:
    """Explain a diagnostic code, a key or kind of a spec, or a word in a report."""
    from dpspec.cli.printed_names import printed_names
    from dpspec.language.blocks import reference
    from dpspec.language.diagnostics import CODES

    catalog = load_project()
    what = what.lower() if what.isupper() else what  # reports print verdicts in capitals
    spec_keys = keys(reference(catalog))
    pairs = list(_pairs(catalog, spec_keys))
    if what not in CODES and "." not in what:  # importing the checks takes longest
        names = printed_names(catalog)
        pairs += [(name, block.replace("\n", "\n    ")) for name, blocks in names.items() for block in blocks]
    explanations = [text for word, text in pairs if word == what] or [
        text for word, text in pairs if word == _without_items(what)
    ]
    if not explanations:
        texts_by_word = dict(pairs)
        close = joined([quoted(word) for word in close_matches(what, list(texts_by_word), 3)], "or")
        lists = ": `dpspec plugins` lists kinds, `dpspec rules` rules, `dpspec schema` keys"
        suggestion = f"; did you mean {close}?" if close else lists
        raise UsageError(f"unknown code, key, kind or name in a report {quoted(what)}{suggestion}")
    emit("\n".join(map(_folded, "\n\n".join(explanations).split("\n"))))
    return ExitCode.OK


def _without_items(path: str) -> str:
    """Remove list indices and the ids of claims from a path, as messages print it: ``claims.ID.kappa``."""
    path = re.sub(r"\[\d+\]|\.\d+(?=\.|$)", "", path).removeprefix("matrix.")
    keys_of_path = path.split(".")
    return ".".join(
        ["claims", *keys_of_path[2:]] if keys_of_path[0] == "claims" and len(keys_of_path) > 2 else keys_of_path
    )


def _folded(line: str) -> str:
    text = line.lstrip()
    indent = line.removesuffix(text)
    return fill(plain(text), page_width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _pairs(catalog: Catalog, spec_keys: Sequence[Key]) -> Iterator[tuple[str, str]]:
    """Words with their explanations, in lines that are not folded yet."""
    from dpspec.language import diagnostics
    from dpspec.reporters.names import TERMS
    from dpspec.reporters.words import VERDICTS

    for name, term in TERMS.items():
        for word in name.split(", "):
            yield word, f"term {name}\n    {term.text}\n    Example: {term.example}"
    for code in diagnostics.CODES:
        yield code, diagnostics.explain(code, page_width())
    for field, (name, chooser) in _FAMILIES.items():
        for kind, offered in getattr(catalog, field).items():
            yield kind, _provider(name, chooser, kind, offered, spec_keys)
    for verdict, text in VERDICTS.items():
        for word in (verdict, "verdict", "verdicts"):
            yield word, f"verdict {verdict}\n    {text}"
    for kind in dict.fromkeys(kind for key in spec_keys if key.chooser == "claims.kind" for kind in key.kinds):
        yield kind, f"claim kind {kind}{_listed(_of_kind('claims.kind', kind, spec_keys))}"
    paths = {key.path for key in spec_keys}
    inner: dict[str, list[Key]] = defaultdict(list)
    for key in spec_keys:
        inner[key.path.rpartition(".")[0]].append(key)
    for key in spec_keys:  # by path, or by its end if that is not another path
        path_keys = key.path.split(".")
        for word in {".".join(path_keys[start:]) for start in range(len(path_keys))}:
            if word == key.path or word not in paths:
                yield word, _key(key, inner[key.path])
    names = {word for key in spec_keys for word in (key.path.rpartition(".")[2], *key.kinds)}
    for key in spec_keys:
        for choice in (choice for choice in key.choices if choice not in names):
            yield choice, f"{choice}, a value of {_key(key, inner[key.path])}"


def _provider(name: str, chooser: str, kind: str, offered: Offered, spec_keys: Sequence[Key]) -> str:
    provider = offered.provider
    lines = [f"{name} {kind}, by {offered.distribution} {offered.version}", f"    {provider.summary}"]
    for field, text in _SAID.items():
        if value := getattr(provider, field, None):
            lines.append("    " + text.format(", ".join(sorted(value)) if isinstance(value, frozenset) else value))
    kind_keys = _of_kind(chooser, kind, spec_keys)
    if chooser in _BLOCKS:
        lines.append(f"    Chosen by {chooser}: {kind}")
        kind_keys = keys({"properties": {"audit": {"properties": {_BLOCKS[chooser]: provider.schema}}}})[2:]
    return "\n".join(lines) + _listed(kind_keys)


def _of_kind(chooser: str, kind: str, spec_keys: Sequence[Key]) -> list[Key]:
    block = f"{chooser.partition('.')[0]}."
    return [key for key in spec_keys if key.chooser == chooser and kind in key.kinds and key.path.startswith(block)]


def _listed(keys: Sequence[Key]) -> str:
    """After an empty line; without the keys of maps in a list."""
    lists = tuple(f"{key.path}." for key in keys if key.type.startswith("list of map"))
    shown = [key for key in keys if not key.path.startswith(lists)]
    return "".join(["\n"] * bool(shown) + [f"\n    {key.path}: {key.type}\n        {_line(key)}" for key in shown])


def _line(key: Key) -> str:
    return " ".join(key.description.split())


def _key(key: Key, inner_keys: Sequence[Key]) -> str:
    """The lines of a key. inner_keys: the keys one level inside it."""
    lines = [key.path, f"    {key.type}"]
    lines += [f"    {line}" for line in (_line(key), key.where and f"where {key.where}") if line]
    below = [  # keys that exist for all choices inside this one: ``data.kind``, not ``data.path``
        inner
        for inner in inner_keys
        if not inner.chooser.startswith(f"{key.path}.")
        and (inner.chooser != key.chooser or not key.chooser or set(inner.kinds) & set(key.kinds))
    ]
    usual: dict[str, Key] = {}  # of several forms of a key the one of most kinds
    for inner in below:
        if inner.path not in usual or (usual[inner.path].chooser and len(inner.kinds) > len(usual[inner.path].kinds)):
            usual[inner.path] = inner
    return "\n".join(lines) + _listed(list(usual.values()))
