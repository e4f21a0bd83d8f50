"""``dpspec explain``: the meaning of a diagnostic code, a key of a spec, a kind, a choice or a verdict."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.output import emit, page_width
from dpspec.contract.attacks import Canary, Score
from dpspec.errors import ExitCode, UsageError
from dpspec.text import close_matches, joined, plain, quoted

if TYPE_CHECKING:
    from dpspec.cli.spec_keys import Key
    from dpspec.contract.catalog import Catalog, Offered

_FAMILIES = (("mechanisms", "mechanism"), ("datasets", "data"), ("models", "model"), ("backends", "backend"))

#: The providers of attacks, with the key of the audit that selects them.
_ATTACKS = (("canaries", "canary", "audit.canary.kind"), ("scores", "score", "audit.score"))

#: The key that selects a kind of a family or of claims.
_CHOOSER = {
    "mechanism": "mechanism.kind",
    "data": "data.kind",
    "model": "model.kind",
    "backend": "training.backend",
    "claim": "claims.kind",
}

#: Shorter words are not searched in descriptions.
_SHORTEST = 4


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CODE|KEY|KIND",
            help="A diagnostic code (unknown-key), a key (mechanism.noise_multiplier), a kind (group, csv, approx-dp), "
            "a choice (all-iterates), a verdict (open), or all verdicts (verdicts).",
            show_default=False,
        ),
    ],
) -> int:
    """Explain a diagnostic code, a key of a spec, a kind and its keys, a choice or a verdict."""
    from dpspec.cli.spec_keys import alike, choices, find, keys
    from dpspec.language.bundle import reference
    from dpspec.language.diagnostics import CODES
    from dpspec.language.diagnostics import explain as explain_code
    from dpspec.registry.loader import load_catalog
    from dpspec.reporters.labels import VERDICTS

    catalog = load_catalog()
    all_keys = list(keys(reference(catalog)))
    code = explain_code(what)
    blocks = [_code(code)] if code is not None else []
    blocks += [
        _kind(family, what, getattr(catalog, name)[what], all_keys)
        for name, family in _FAMILIES
        if _has(catalog, name, what)
    ]
    blocks += [
        _attack(family, chooser, getattr(catalog, name)[what])
        for name, family, chooser in _ATTACKS
        if _has(catalog, name, what)
    ]
    if what in catalog.reporters:
        blocks.append(_kind("report format", what, catalog.reporters[what], ()))
    verdicts = [verdict for verdict in VERDICTS if what in ("verdict", "verdicts", verdict)]
    blocks += [f"verdict {verdict}\n{_folded(VERDICTS[verdict])}" for verdict in verdicts]
    claims = _of_kind("claim", what, all_keys)
    if claims:
        blocks.append(f"claim kind {what}\n\n{_listed(claims)}")
    blocks += [_key(cases, all_keys) for cases in alike(find(what, all_keys))]
    if not blocks:
        blocks += [_key([key], ()) for key in _choosing(what, all_keys) or _mentioning(what, all_keys)]
    if not blocks:
        kinds = [kind for name, *_ in (*_FAMILIES, *_ATTACKS) for kind in getattr(catalog, name)]
        paths = [key.path for key in all_keys]
        lasts = [path.rpartition(".")[2] for path in paths]
        values = [choice for key in all_keys for choice in choices(key)]
        raise UsageError(_nothing(what, [*CODES, *kinds, *catalog.reporters, *VERDICTS, *values, *lasts, *paths]))
    emit("\n\n".join(blocks))
    return ExitCode.OK


def _has(catalog: Catalog, family: str, kind: str) -> bool:
    return kind in getattr(catalog, family)


def _code(text: str) -> str:
    """An explanation with folded paragraphs and unchanged examples, which are indented."""
    import textwrap

    width = page_width()
    lines = text.rstrip().split("\n")
    return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)


def _kind(family: str, kind: str, offered: Offered, known: Sequence[Key]) -> str:
    provider = offered.provider
    what = family if family == "report format" else f"{family} kind"
    lines = [f"{what} {kind}, by {offered.distribution} {offered.version}", _folded(provider.summary)]
    if hasattr(provider, "claims"):
        lines.append(_folded(f"Claims that it can judge: {', '.join(sorted(provider.claims))}"))
    if hasattr(provider, "capabilities"):
        lines.append(_folded(f"Capabilities: {', '.join(sorted(provider.capabilities))}"))
    own = _of_kind(family, kind, known)
    if own:
        lines.append(f"\n{_listed(own)}")
    return "\n".join(lines)


def _attack(family: str, chooser: str, offered: Offered) -> str:
    """A kind of canary or a score, its requirements and its keys."""
    provider = offered.provider
    lines = [f"{family} {provider.kind}, by {offered.distribution} {offered.version}", _folded(provider.summary)]
    lines += [_folded(text) for text in _needs(provider)]
    lines.append(_folded(f"Chosen by {chooser}: {provider.kind}"))
    block = "audit.canary" if isinstance(provider, Canary) else "audit.scoring"
    for key, schema in provider.schema.get("properties", {}).items():
        lines.append(f"\n{_folded(f'{block}.{key}')}\n{_folded(schema['description'], indent=8)}")
    return "\n".join(lines)


def _needs(provider: Canary | Score) -> Iterator[str]:
    """The requirements of a canary or a score."""
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


def _of_kind(family: str, kind: str, known: Sequence[Key]) -> list[Key]:
    """The distinct keys that a kind adds to its block."""
    from dpspec.cli.spec_keys import Condition

    chooser = _CHOOSER.get(family, "")
    block = chooser.partition(".")[0]
    chosen = Condition(chooser, (kind,))
    own = [key for key in known if chosen in key.conditions and key.path.startswith(f"{block}.")]
    return list({(key.path, key.type, key.description): key for key in own}.values())


def _choosing(value: str, known: Sequence[Key]) -> list[Key]:
    """The distinct keys with a choice that includes the value."""
    from dpspec.cli.spec_keys import choices

    taking = {key.path: dataclasses.replace(key, conditions=()) for key in known if value in choices(key)}
    return list(taking.values())


def _mentioning(value: str, known: Sequence[Key]) -> list[Key]:
    """The distinct text keys whose description names the value."""
    if len(value) < _SHORTEST:
        return []
    word = re.compile(rf"(?<![\w-]){re.escape(value)}(?![\w-])")
    found = {
        key.path: dataclasses.replace(key, conditions=())
        for key in known
        if key.type.startswith("text") and word.search(key.description)
    }
    return list(found.values())


def _listed(keys: Sequence[Key]) -> str:
    """Keys with their types and descriptions, without the keys of maps in a list."""
    lists = tuple(f"{key.path}." for key in keys if key.type.startswith("list of map"))
    lines = []
    for key in keys:
        if not key.path.startswith(lists):
            lines += [_folded(f"{key.path}: {key.type}", hang=4), _folded(key.description, indent=8)]
    return "\n".join(lines)


def _key(cases: Sequence[Key], known: Sequence[Key]) -> str:
    """A key with its conditions, and the keys below it."""
    from dpspec.cli.spec_keys import when

    key = cases[0]
    lines = [key.path, _folded(key.type)]
    if key.description:
        lines.append(_folded(key.description))
    lines += [_folded(f"where {' and '.join(map(str, conditions))}") for conditions in when(cases, known) if conditions]
    below = {k.path: k for k in known if k.path.rpartition(".")[0] == key.path and any(_along(c, k) for c in cases)}
    if below:
        lines.append(f"\n{_listed(list(below.values()))}")
    return "\n".join(lines)


def _along(key: Key, below: Key) -> bool:
    """Whether a key below another exists for all choices inside the other: ``data.kind``, not ``data.path``."""
    further = set(below.conditions) - set(key.conditions)
    return set(key.conditions) <= set(below.conditions) and not any(c.path.startswith(f"{key.path}.") for c in further)


def _folded(text: str, *, indent: int = 4, hang: int = 0) -> str:
    import textwrap

    return textwrap.fill(
        plain(text),
        page_width(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
    )


def _nothing(what: str, names: list[str]) -> str:
    close = [quoted(name) for name in close_matches(what, names, 3)]
    suggestion = f"; did you mean {joined(close, 'or')}?" if close else ""
    return f"unknown diagnostic code, key, kind, choice or verdict {quoted(what)}{suggestion}"
