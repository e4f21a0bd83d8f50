"""Text for people, from values and names that others wrote: made visible, quoted, listed, and what they meant instead.

The lowest layer: it imports nothing of dpspec, and nothing that takes time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

#: Of a foreign text so many characters stand in a message at most: it may be somebody's secret.
LONGEST = 40

#: Categories that draw nothing or draw it elsewhere: control, format (bidirectional, zero-width), surrogate, private
#: use, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

#: ASCII punctuation that no Markdown dialect reads as markup in the middle of a line.
_TAME = frozenset(" ,-./()=%;+'?\"")

#: What is markup in Markdown, and is none where it stands like this: relations between blanks, and a lone ampersand;
#: what is no word's part on neither side begins no emphasis; and a time of day.
_RELATIONS = re.compile(
    r"(?<= )(?:[<>]=?|[~&])(?= )|(?<=[^\W_])_(?=[^\W_])|(?<=\b\d\d):(?=\d\d\b)|(?<=T\d\d):(?=\d\d\b)"
)

#: Markup that a backslash takes away, for whoever reads the text as it is; the rest is written as an entity.
_BACKSLASHED = frozenset("[]")

#: What continuous-integration runners obey when it stands in a log: ``::command::``, and ``##[command]``,
#: ``##vso[command]``, ``##teamcity[command]``.
_COMMANDS = re.compile(r":(?=:)|##(?=\w*\[)")

#: The same in a text of several lines, in which two colons mean something at the beginning of a line only.
_OBEYED = re.compile(r"(?m)^([ \t]*:)(?=:)|(##)(?=\w*\[)")

#: The colours of terminals, as our own renderers write them.
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")

#: What GitHub takes for the beginning of an address; its dot is escaped too.
_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)

#: What begins a list or underlines a heading where it stands first on a line.
_START = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=]))([-+=.)])")

#: Words that are less alike than this are not taken for one another.
_ALIKE = 0.6


def several(count: int, unit: str) -> str:
    """So many units of privacy, with what is said of one in brackets.

    >>> several(1, "user (at most 4 records)"), several(2, "user (at most 4 records)"), several(3, "record")
    ('one user (at most 4 records)', '2 users (at most 4 records each)', '3 records')
    """
    if count == 1:
        return f"one {unit}"
    name, bracket, most = unit.partition(" (")
    return f"{count} {name}s" + (f" ({most.removesuffix(')')} each)" if bracket else "")


def visible(text: str) -> str:
    """The text with everything but letters, digits, signs and blanks written as an escape: a no-break space too."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def plain(text: str) -> str:
    """The text on one line, with everything invisible written out: ``\\x1b``, ``\\u202e``; line ends become spaces.

    What a continuous-integration runner would take for a command is broken by a space: ``: :error: :``.

    >>> plain("a\\tb\\x1b[31m")
    'a b\\\\x1b[31m'
    """
    line = " ".join(text.splitlines()).replace("\t", " ")
    return _COMMANDS.sub(r"\g<0> ", _without_hidden(line))


def harmless(text: str, *, styled: bool = False, commands: bool = False) -> str:
    """A whole text as a terminal and a log may have it, whatever foreign text is in it: line ends and tabs stay.

    What is invisible is written out, and what runners obey broken by a space. styled: colours stay. commands: so does
    what runners obey.

    >>> harmless("fine\\n::error::x \\x1b[2J")
    'fine\\n: :error::x \\\\x1b[2J'
    """
    if not text.replace("\n", "").replace("\t", "").isprintable():
        parts = _STYLE.split(text) if styled else [text]
        parts[::2] = [_without_hidden(part, keeping="\n\t") for part in parts[::2]]
        text = "".join(parts)
    return text if commands else _OBEYED.sub(r"\g<0> ", text)


def json_text(text: str) -> str:
    """JSON that says the same, with what is invisible, and what runners obey, as escapes in its strings."""
    if not text.replace("\n", "").isprintable():
        text = "".join(_json_escaped(c) if c != "\n" and unicodedata.category(c) in _HIDDEN else c for c in text)
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0][0]):04x}{found[0][1:]}", text)


def plain_lines(text: str) -> str:
    """:func:`plain` text line by line."""
    return "\n".join(map(plain, text.splitlines()))


def markdown(text: str) -> str:
    """:func:`plain` text in which no character is markup, for a Markdown line, its middle or a table cell."""
    line = plain(text).strip()
    relations = {i for found in _RELATIONS.finditer(line) for i in range(*found.span())}
    escaped = "".join(
        c if i in relations or _tame(c, line[i + 1 : i + 2]) else f"\\{c}" if c in _BACKSLASHED else f"&#{ord(c)};"
        for i, c in enumerate(line)
    )
    return _START.sub(lambda start: f"{start[1]}&#{ord(start[2])};", _ADDRESS.sub(r"\1&#46;", escaped))


def shortened(text: str, longest: int = LONGEST) -> str:
    """The text, or its beginning and dots where it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def clipped(text: str, longest: int = LONGEST) -> str:
    """The beginning of a long text, made visible."""
    return visible(shortened(text, longest))


def quoted(text: str) -> str:
    """A name or a choice as messages quote it."""
    return f"'{clipped(text)}'"


def shown(value: Any) -> str:
    """Format a JSON value for messages: ``1.5``, ``"eight"``, ``a list``, ``null``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return f'"{clipped(value)}"'
    return "a map" if hasattr(value, "keys") else "a list"


def number(value: float) -> str:
    """A number as one would write it in a spec: ``1e-6``, not ``1e-06``."""
    return repr(value).replace("e-0", "e-").replace("e+", "e").replace("e0", "e")


def choice(value: Any) -> str:
    """One of several allowed values."""
    return visible(value) if isinstance(value, str) else shown(value)


def listed(values: Iterable[Any]) -> str:
    """Allowed values, in their own order, separated by commas."""
    return ", ".join(map(choice, values))


def joined(words: Sequence[str], last: str = "and") -> str:
    """Words as a sentence lists them: ``a``, ``a and b``, ``a, b and c``."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def close_matches(word: str, candidates: Iterable[str], most: int) -> list[str]:
    """The candidates that a person who wrote ``word`` may have meant, the likeliest first; of equals the first."""
    # Long words are no slips of the pen, and comparing them takes quadratic time.
    if not 0 < len(word) <= LONGEST:
        return []
    scores = {candidate: _likeness(_folded(word), _folded(candidate)) for candidate in candidates}
    return sorted((c for c in scores if scores[c] > _ALIKE), key=lambda candidate: -scores[candidate])[:most]


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a person who wrote ``word`` probably meant; None where none is near."""
    return next(iter(close_matches(word, candidates, 1)), None)


def did_you_mean(near: str | None) -> str:
    """The end of a message about a wrong word: ``; did you mean 'poisson'?``; empty without a candidate."""
    return f"; did you mean {quoted(near)}?" if near else ""


def _without_hidden(text: str, keeping: str = "") -> str:
    """The text with everything invisible written out, but for some characters."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if c not in keeping and unicodedata.category(c) in _HIDDEN else c for c in text)


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _tame(character: str, following: str) -> bool:
    """Whether a character can stand as it is; a colon can where no address or emoji code may begin with it."""
    if character == ":":
        return following in ("", " ")
    return not character.isascii() or character.isalnum() or character in _TAME


def _likeness(word: str, candidate: str) -> float:
    """1 for equal words; a part of the candidate counts for a little less than the whole."""
    from difflib import SequenceMatcher

    def ratio(other: str) -> float:
        return SequenceMatcher(None, word, other, autojunk=False).ratio()

    parts = [part for part in candidate.split("_") if len(part) >= 3]
    begun = [candidate[: len(word)]] if len(word) >= 3 else []
    return max([ratio(candidate), *(0.9 * ratio(part) for part in parts + begun)])


def _folded(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")
