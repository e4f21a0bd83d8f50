"""Escape, quote, list and compare untrusted text for messages. This module imports only the standard library."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

#: Maximum number of characters of an untrusted text in a message: it may be a secret.
LONGEST = 40

#: The names of quantities, options and columns that readers do not know.
_NAMES = {"fpr": "false-positive rate", "tpr": "true-positive rate", "fnr": "false-negative rate"}

#: Categories of invisible or reordering characters: control, format (bidirectional, zero-width), surrogate, private
#: use, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

#: ASCII punctuation that is not Markdown markup within a line.
_TAME = frozenset(" ,-./()=%;+'?\"")

#: Contexts in which Markdown's markup characters are plain text: relations and ampersands between blanks, underscores
#: within words, and times of day.
_RELATIONS = re.compile(
    r"(?<= )(?:[<>]=?|[~&])(?= )|(?<=[^\W_])_(?=[^\W_])|(?<=\b\d\d):(?=\d\d\b)|(?<=T\d\d):(?=\d\d\b)"
)

#: Markup to escape by a backslash, which keeps the source readable; the rest becomes entities.
_BACKSLASHED = frozenset("[]")

#: Commands that CI runners execute from logs: ``::command::``, ``##[command]``, ``##vso[command]``.
_COMMANDS = re.compile(r":(?=:)|##(?=\w*\[)")

#: The same in a text of several lines, in which ``::`` is a command at the beginning of a line only.
_OBEYED = re.compile(r"(?m)^([ \t]*:)(?=:)|(##)(?=\w*\[)")

#: Terminal colors written by our renderers.
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")

#: Beginning of an address that GitHub links.
_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)

#: Beginning of a line that is a list item or the underline of a heading.
_START = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=]))([-+=.)])")

#: Minimum similarity of suggestions.
_ALIKE = 0.7


def several(count: int, unit: str) -> str:
    """Format a number of privacy units.

    >>> several(1, "user (at most 4 records)"), several(2, "user (at most 4 records)"), several(3, "record")
    ('one user (at most 4 records)', '2 users (at most 4 records each)', '3 records')
    """
    if count == 1:
        return f"one {unit}"
    name, most = unit_parts(unit)
    return f"{count} {name}s" + (f"{most.removesuffix(')')} each)" if most else "")


def unit_parts(unit: str) -> tuple[str, str]:
    """The name of a privacy unit, and the rest: the maximum number of records, as ``Scope.unit`` states it.

    >>> unit_parts("user (at most 4 records)"), unit_parts("record")
    (('user', ' (at most 4 records)'), ('record', ''))
    """
    name, bracket, most = unit.partition(" (")
    return name, f"{bracket}{most}"


def spaced(name: str) -> str:
    """The name of a quantity, an option or a column in words: ``noise multiplier`` for ``noise_multiplier``."""
    return _NAMES.get(name, name.replace("_", " "))


def visible(text: str) -> str:
    """Escape all characters that are not printable, including the no-break space."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def plain(text: str) -> str:
    r"""Put a text on one line, escape invisible characters, and break commands of CI runners by a space.

    >>> plain("a\tb\x1b[31m")
    'a b\\x1b[31m'
    """
    line = " ".join(text.splitlines()).replace("\t", " ")
    return _COMMANDS.sub(r"\g<0> ", _without_hidden(line))


def harmless(text: str, *, styled: bool = False, commands: bool = False) -> str:
    r"""Make a text safe for terminals and logs: escape invisible characters, and break commands of CI runners.

    ``styled`` keeps colors, ``commands`` keeps commands. Tabs remain, and line ends as newlines.

    >>> harmless("fine\n::error::x \x1b[2J")
    'fine\n: :error::x \\x1b[2J'
    """
    text = text.replace("\r\n", "\n")
    if not text.replace("\n", "").replace("\t", "").isprintable():
        pieces = _STYLE.split(text) if styled else [text]
        pieces[::2] = [_without_hidden(part, keeping="\n\t") for part in pieces[::2]]
        text = "".join(pieces)
    return text if commands else _OBEYED.sub(r"\g<0> ", text)


def json_text(text: str) -> str:
    """Escape invisible characters and commands of CI runners in the strings of a JSON text."""
    if not text.replace("\n", "").isprintable():
        text = "".join(json.dumps(c)[1:-1] if c != "\n" and unicodedata.category(c) in _HIDDEN else c for c in text)
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0][0]):04x}{match[0][1:]}", text)


def markdown(text: str) -> str:
    """Apply :func:`plain` and escape Markdown, for a part of a line or a table cell."""
    line = plain(text).strip()
    relations = {i for match in _RELATIONS.finditer(line) for i in range(*match.span())}
    escaped = "".join(
        c if i in relations or _tame(c, line[i + 1 : i + 2]) else f"\\{c}" if c in _BACKSLASHED else f"&#{ord(c)};"
        for i, c in enumerate(line)
    )
    return _START.sub(lambda start: f"{start[1]}&#{ord(start[2])};", _ADDRESS.sub(r"\1&#46;", escaped))


def shortened(text: str, longest: int = LONGEST) -> str:
    """Truncate a text to ``longest`` characters, ending in dots."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def clipped(text: str, longest: int = LONGEST) -> str:
    """Truncate a text and escape it."""
    return visible(shortened(text, longest))


def quoted(text: str) -> str:
    """Truncate, escape and quote a name for a message."""
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
    """Format a number as in a spec: ``1e-6``, not ``1e-06``."""
    return repr(value).replace("e-0", "e-").replace("e+", "e").replace("e0", "e")


def choice(value: Any) -> str:
    """Format one of several allowed values."""
    return visible(value) if isinstance(value, str) else shown(value)


def listed(values: Iterable[Any]) -> str:
    """Join allowed values by commas."""
    return ", ".join(map(choice, values))


def joined(items: Sequence[str], last: str = "and") -> str:
    """Join words as in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return f"{', '.join(items[:-1])} {last} {items[-1]}" if len(items) > 1 else "".join(items)


def close_matches(word: str, candidates: Iterable[str], most: int) -> list[str]:
    """Return up to ``most`` candidates that are similar to ``word``, the most similar first."""
    # Long words are not typos, and comparing them takes quadratic time.
    if not 0 < len(word) <= LONGEST:
        return []
    scores = {candidate: _likeness(_folded(word), _folded(candidate)) for candidate in candidates}
    return sorted((c for c in scores if scores[c] > _ALIKE), key=lambda candidate: -scores[candidate])[:most]


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is most similar to ``word``, or None."""
    return next(iter(close_matches(word, candidates, 1)), None)


def did_you_mean(suggestion: str | None) -> str:
    """Return ``; did you mean 'poisson'?`` for the end of a message; empty for None."""
    return f"; did you mean {quoted(suggestion)}?" if suggestion else ""


def _without_hidden(text: str, keeping: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(_escaped(c) if c not in keeping and unicodedata.category(c) in _HIDDEN else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _tame(character: str, following: str) -> bool:
    """Whether a character needs no escape; a colon may begin an address or emoji code."""
    if character == ":":
        return following in ("", " ")
    return not character.isascii() or character.isalnum() or character in _TAME


def _likeness(word: str, candidate: str) -> float:
    """Similarity from 0 to 1; a part of the candidate counts less than the whole."""
    from difflib import SequenceMatcher

    def ratio(text: str) -> float:
        return SequenceMatcher(None, word, text, autojunk=False).ratio()

    words = [part for part in candidate.split("_") if len(part) >= 2]
    begun = [candidate[: len(word)]] if len(word) >= 3 else []
    stem = re.sub(r"\d+", "", word)
    numbered = [0.9] if stem and stem != word and stem == re.sub(r"\d+", "", candidate) else []  # another size
    return max([ratio(candidate), *numbered, *(0.9 * ratio(part) for part in words + begun)])


def _folded(word: str) -> str:
    return word.lower().lstrip("-").replace("-", "_").replace(" ", "_")
