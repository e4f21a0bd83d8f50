"""``dpspec explain``: the meaning of a diagnostic code, a key or kind of a spec, or a name in a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.output import emit, page_width
from dpspec.contract.attacks import Canary, Score
from dpspec.errors import ExitCode, UsageError
from dpspec.text import close_matches, joined, plain, quoted

if TYPE_CHECKING:
    from dpspec.cli.spec_keys import Key
    from dpspec.contract.catalog import Offered

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
    from dpspec.cli.spec_keys import alike, choices, find, keys
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
    blocks += [_named(block) for block in names.get(what, ())]
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


def _named(block: str) -> str:
    head, *lines = block.split("\n")
    return "\n".join([head, *map(_folded, lines)])


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
    from dpspec.cli.spec_keys import Condition

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
    first, rest = " " * indent, " " * (indent + hang)
    return fill(plain(text), page_width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
