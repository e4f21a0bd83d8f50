"""Read results from JSON files and from pages, which embed their result as JSON, compressed if it is large."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.errors import ResultError
from dpspec.regular_files import NotRegularError, read_text

if TYPE_CHECKING:
    from dpspec.contract.results import Result

#: The id of the script element; browsers do not execute its type.
ELEMENT = "dpspec-result"

_BEGIN, _END = f'<script type="application/json" id="{ELEMENT}">', "</script>"

#: The beginning of an element with zlib's compression in base64, and the minimum length of its JSON.
_BEGIN_COMPRESSED, _LARGE = f'<script type="application/zlib" id="{ELEMENT}">', 1 << 14

#: Escapes in the JSON, so that no text ends the element or begins a comment.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def embedded(json: str) -> str:
    """The element of a page with a result."""
    if len(json) >= _LARGE:
        return f"{_BEGIN_COMPRESSED}{b64encode(zlib.compress(json.encode('utf-8'), 9)).decode('ascii')}{_END}"
    for character, escape in _ESCAPES.items():
        json = json.replace(character, escape)
    return f"{_BEGIN}{json}{_END}"


def is_page(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n")[:15].lower().startswith(("<!doctype html", "<html"))


def extract(page: str) -> str:
    """Raise ``ResultError`` unless there is exactly one result."""
    # Embedded text cannot begin an element: "<" is escaped.
    begins = page.count(_BEGIN) + page.count(_BEGIN_COMPRESSED)
    begin = _BEGIN if _BEGIN in page else _BEGIN_COMPRESSED
    text, end, _ = page.partition(begin)[2].partition(_END)
    if begins != 1 or not end:
        count = begins if begins != 1 else "one without an end"
        raise ResultError(f"a report contains one result, this page contains {count}")
    return text if begin is _BEGIN else _decompressed(text)


def _decompressed(text: str) -> str:
    from dpspec.results.codec import MAX_BYTES

    reader = zlib.decompressobj()
    try:
        content = reader.decompress(b64decode(text, validate=True), MAX_BYTES)
        json = content.decode("utf-8")
    except (ValueError, zlib.error) as error:
        raise ResultError(f"the result of this page cannot be decompressed: {error}") from None
    if not reader.eof or reader.unused_data:
        raise ResultError(f"the result of this page is damaged, or has more than {MAX_BYTES} bytes")
    return json


def without_result(page: str) -> str:
    """A page with an empty element: equal results may be compressed to different bytes."""
    head, begin, after = page.partition(_BEGIN_COMPRESSED)
    return f"{head}{begin}{after.partition(_END)[1]}{after.partition(_END)[2]}" if begin else page


#: Suffixes of files that programs display as markup, including markup in the result's texts.
_SHOWN = frozenset(
    [".html", ".htm", ".xhtml", ".xht", ".shtml", ".mht", ".mhtml", ".svg", ".xml", ".md", ".markdown", ".pdf"]
)


def page_at(path: Path) -> str | None:
    """The text of a page that :func:`read_result` has read; None for any other file."""
    from dpspec.results.codec import MAX_BYTES

    text = read_text(path, MAX_BYTES)
    return text if is_page(text) else None


def outcome_differs(path: Path, result: Result) -> str:
    """The first key of the outcome that a file states and that does not follow from its result; empty if all do."""
    from dpspec.results.codec import MAX_BYTES, outcome_of, stated_outcome

    text = read_text(path, MAX_BYTES)
    stated, due = stated_outcome(extract(text) if is_page(text) else text), outcome_of(result)
    wrong = [key for key in stated if stated[key] != due[key]]
    return f"{wrong[0]}: {stated[wrong[0]]!r}, and its audits give {due[wrong[0]]!r}" if wrong else ""


def read_result(path: Path) -> Result:
    """``ResultError`` with the file's name if it contains none."""
    from dpspec.results.codec import MAX_BYTES, load

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
        hint = "; `dpspec run SPEC --report json=RESULT` writes the result of a spec" if spec else ""
        raise ResultError(f"{path}: {error}{hint}") from None
