"""``dpspec explain``: what a diagnostic code, a key of a spec, or a kind means."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.output import emit, page_width
from dpspec.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dpspec.cli.keys import Key
    from dpspec.contract import Catalog, Offered

_FAMILIES = (("mechanisms", "mechanism"), ("datasets", "data"), ("models", "model"), ("backends", "backend"))


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CODE|KEY|KIND",
            help="A diagnostic code (unknown-key), a key (mechanism.noise_multiplier) or a kind (group).",
            show_default=False,
        ),
    ],
) -> int:
    """Explain a diagnostic code, a key of a spec, or a kind of mechanism, data, model or backend."""
    from dpspec.cli.keys import find, keys
    from dpspec.registry.loader import load_catalog
    from dpspec.spec.bundle import reference
    from dpspec.spec.explain import CODES
    from dpspec.spec.explain import explain as explain_code

    catalog = load_catalog()
    known = list(keys(reference(catalog)))
    code = explain_code(what)
    blocks = [_code(code)] if code is not None else []
    blocks += [
        _kind(family, what, getattr(catalog, name)[what]) for name, family in _FAMILIES if _has(catalog, name, what)
    ]
    if what in catalog.reporters:
        blocks.append(_kind("report format", what, catalog.reporters[what]))
    blocks += [_key(key) for key in find(what, known)]
    if not blocks:
        kinds = [kind for name, _ in _FAMILIES for kind in getattr(catalog, name)]
        paths = [key.path for key in known]
        lasts = [path.rpartition(".")[2] for path in paths]
        raise UsageError(_nothing(what, [*CODES, *kinds, *catalog.reporters, *lasts, *paths]))
    emit("\n\n".join(blocks))
    return ExitCode.OK


def _has(catalog: Catalog, family: str, kind: str) -> bool:
    return kind in getattr(catalog, family)


def _code(text: str) -> str:
    """An explanation with its paragraphs folded; examples, which are indented, stay as they are."""
    import textwrap

    width = page_width()
    lines = text.rstrip().split("\n")
    return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)


def _kind(family: str, kind: str, offered: Offered) -> str:
    provider = offered.provider
    what = family if family == "report format" else f"{family} kind"
    lines = [f"{what} {kind}, by {offered.distribution} {offered.version}", _folded(provider.summary)]
    if hasattr(provider, "claims"):
        lines.append(_folded(f"Claims that it can judge: {', '.join(sorted(provider.claims))}"))
    if hasattr(provider, "capabilities"):
        lines.append(_folded(f"Capabilities: {', '.join(sorted(provider.capabilities))}"))
    return "\n".join(lines)


def _key(key: Key) -> str:
    lines = [key.path, _folded(key.type)]
    if key.description:
        lines.append(_folded(key.description))
    if key.conditions:
        lines.append(_folded(f"where {' and '.join(key.conditions)}"))
    return "\n".join(lines)


def _folded(text: str) -> str:
    import textwrap

    from dpspec.reporters.escape import plain

    indent = " " * 4
    return textwrap.fill(plain(text), page_width(), initial_indent=indent, subsequent_indent=indent)


def _nothing(what: str, known: list[str]) -> str:
    close = get_close_matches(what, dict.fromkeys(known), 3)
    suggestion = f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"{what!r} is no diagnostic code, key or kind{suggestion}"
