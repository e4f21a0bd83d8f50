"""Reading result files: results in JSON, and those inside pages.

A page holds its result as JSON that no browser runs and that ``report``, ``verify`` and ``diff`` read back.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import ResultError, UsageError
from dpspec.regular_files import NotRegularError, read_text

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result

#: The script element's id; its type is none that browsers execute.
ELEMENT = "dpspec-result"

_BEGIN, _END = f'<script type="application/json" id="{ELEMENT}">', "</script>"

#: Written as escapes inside the JSON, nothing can end the element or begin a comment.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


#: A result of more characters is packed: no browser reads it, and it shrinks to a tenth.
_PACKED_FROM = 1_000_000

#: A packed result begins so, and is at most so many times as long as what holds it: longer ones stay as they are.
_PACKED, _DENSEST = "zlib:", 200


def embedded(json: str) -> str:
    """What stands in a page: the JSON with every character escaped that HTML could take for markup, or it, packed.

    A long one is ``zlib:`` and base64. :func:`extract` reads both.
    """
    if len(json) > _PACKED_FROM:
        data = json.encode("utf-8")
        packed = _PACKED + base64.b64encode(zlib.compress(data, 9)).decode("ascii")
        if len(data) <= _DENSEST * len(packed):
            return packed
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
    return _unpacked(text) if text.startswith(_PACKED) else text


def with_plain_result(page: str) -> str:
    """The page with its result unpacked: other builds of zlib pack the same text in other ways."""
    before, begin, rest = page.partition(_BEGIN)
    text, end, after = rest.partition(_END)
    return f"{before}{begin}{_unpacked(text)}{end}{after}" if text.startswith(_PACKED) else page


def _unpacked(text: str) -> str:
    """The JSON text of a packed result; raises ``ResultError`` where it is none, or longer than any that is packed."""
    most = _DENSEST * len(text)
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text.removeprefix(_PACKED), validate=True), most)
        if not reader.eof or reader.unused_data:
            raise ResultError(f"the result packed in this page is cut, or longer than {most} bytes")
        return data.decode("utf-8")
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ResultError(f"the result packed in this page cannot be read: {error}") from None


#: Files that programs show as what their names say, whatever they begin with: any markup in them, in texts too.
_SHOWN = frozenset(
    [".html", ".htm", ".xhtml", ".xht", ".shtml", ".mht", ".mhtml", ".svg", ".xml", ".md", ".markdown", ".pdf"]
)


def page_at(path: Path) -> str | None:
    """The text of a report in HTML that :func:`read_result` has read; None for any other file."""
    from dpspec.engine.results.codec import MAX_BYTES

    text = read_text(path, MAX_BYTES)
    return text if is_page(text) else None


def read_results(paths: Sequence[Path]) -> Result:
    """The result in a file, or those in several joined to one; raises ``UsageError`` where a file is given twice."""
    from dpspec.engine.results.joined import join

    seen: dict[str, Path] = {}
    for path in paths:
        first = seen.setdefault(os.path.realpath(path), path)
        if first is not path:
            raise UsageError(f"{path} is given twice{'' if first == path else f', as {first} too'}")
    return join([(str(path), read_result(path)) for path in paths])


def read_result(path: Path) -> Result:
    """The result in a file, or inside a report in HTML; raises ``ResultError`` naming the file where there is none."""
    from dpspec.engine.results.codec import MAX_BYTES, load

    try:
        text = read_text(path, MAX_BYTES)
    except NotRegularError as error:
        raise ResultError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ResultError(f"{path}: not a text file") from None
    try:
        page = is_page(text)
        result = load(extract(text) if page else text)
        if not page and path.suffix.lower() in _SHOWN:
            raise ResultError(
                f"a result in JSON must not end in {path.suffix}, which programs show as markup: "
                f"rename it to {path.stem}.json"
            )
        return result
    except ResultError as error:
        spec = path.suffix in (".yaml", ".yml")
        hint = "; of a spec, `dpspec run SPEC --report json=RESULT` makes a result" if spec else ""
        raise ResultError(f"{path}: {error}{hint}") from None
