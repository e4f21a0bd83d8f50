"""Render a result as one self-contained HTML page, and detect manual edits of a page.

The page needs no server and no scripts (they only open folded parts), prints, and contains the result as JSON, which
``dpspec verify`` and ``dpspec report`` read. ``verify`` renders that result again and compares the pages.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from itertools import zip_longest

from markupsafe import Markup

from dpspec.contract.results import Result
from dpspec.reporters import html
from dpspec.reporters.blocks import Document
from dpspec.reporters.documents.first_screen import INTERNAL_MARK, name_of, opening
from dpspec.reporters.documents.page import page
from dpspec.reporters.read_results import embedded, without_result
from dpspec.reporters.summary import answer
from dpspec.results.codec import dump, reread
from dpspec.results.redact import redact
from dpspec.results.void_bounds import without_void_bounds
from dpspec.text import plain


def render(result: Result, *, internal: bool = False) -> str:
    """The text follows from the embedded JSON for one :func:`generator`."""
    embedded_result = reread(result if internal else redact(result))
    result = without_void_bounds(embedded_result)
    script = _asset("page.js")
    return str(
        Markup(_asset("page.html")).format(
            script_digest=b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
            generator=generator(),
            title=plain(f"{name_of(result)}: {answer(result).headline}"),
            style=Markup(_asset("page.css")),
            body=html.write(page(result, internal=internal)),
            embedded=Markup(embedded(dump(embedded_result))),
            script=Markup(script),
        )
    )


def first_screen(result: Result) -> str:
    """The top of the page without scripts and without the embedded result, for notebooks."""
    result = without_void_bounds(reread(redact(result)))
    body = html.write(Document((opening(result, internal=False),)))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><style>{_asset("page.css")}</style>'
        f'<main><p class="brand">dpspec</p>\n{body}</main>'
    )


def generator() -> str:
    from dpspec.version import VERSION

    return f"dpspec {VERSION}"


def _asset(name: str) -> str:
    from importlib.resources import files

    return (files("dpspec.reporters") / "assets" / name).read_text(encoding="utf-8")


#: The maximum length of a shown difference, and the number of characters before it.
_SHOWN, _BEFORE = 300, 60

_GENERATOR = re.compile(r'<meta name="generator" content="([^"]*)">')


def compared(text: str, result: Result) -> tuple[str, str]:
    """The first difference from the rendered result, and the reason why a page of another version is not compared."""
    named, this_program = _GENERATOR.findall(text), generator()
    writer = named[0] if len(named) == 1 else ""
    if writer != this_program:
        return "", f"rendered by {writer or 'an unknown program'}, and this is {this_program}"
    again = render(result, internal=INTERNAL_MARK in text)
    again = again if again.endswith("\n") or not text.endswith("\n") else f"{again}\n"
    pairs = zip_longest(without_result(text).split("\n"), without_result(again).split("\n"), fillvalue="")
    for number, (line, due) in enumerate(pairs, 1):
        if line != due:
            start = max(0, next(i for i, (a, b) in enumerate(zip_longest(line, due)) if a != b) - _BEFORE)
            shown, expected = (side[start : start + _SHOWN].strip() or "nothing" for side in (line, due))
            return f"line {number}\n    shown:       {shown}\n    its result:  {expected}", ""
    return "", ""
