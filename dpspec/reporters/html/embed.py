"""The result inside a page, as JSON that no browser runs and that ``report``, ``verify`` and ``diff`` read back."""

from __future__ import annotations

from dpspec.errors import ResultError

#: The script element's id; its type is none that browsers execute.
ELEMENT = "dpspec-result"

_BEGIN, _END = f'<script type="application/json" id="{ELEMENT}">', "</script>"

#: Written as escapes inside the JSON, nothing can end the element or begin a comment.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def embedded(json: str) -> str:
    """The JSON text with every character escaped that HTML could take for markup; it stays the same JSON."""
    for character, escape in _ESCAPES.items():
        json = json.replace(character, escape)
    return json


def is_page(text: str) -> bool:
    """Whether a file's text is a page rather than a result."""
    return text.lstrip("\ufeff \t\r\n")[:15].lower().startswith(("<!doctype html", "<html"))


def extract(page: str) -> str:
    """The JSON text inside a page; raises ``ResultError`` where there is none, or more than one."""
    # No element holds another's beginning: in what is embedded, "<" is escaped.
    begins = page.count(_BEGIN)
    text, end, _ = page.partition(_BEGIN)[2].partition(_END)
    if begins != 1 or not end:
        held = begins if begins != 1 else "one that does not end"
        raise ResultError(f"a report holds one result, this page holds {held}")
    return text
