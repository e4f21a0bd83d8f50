"""Text that others wrote, made harmless: names, messages and paths can neither move the cursor nor reorder a line."""

from __future__ import annotations

import re
import unicodedata

#: Categories that draw nothing or draw it elsewhere: control, format (bidirectional, zero-width), surrogate, private
#: use, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

#: ASCII punctuation that no Markdown dialect reads as markup in the middle of a line.
_TAME = frozenset(" ,-./()=%;+'")

#: What continuous-integration runners obey when it stands in a log: ``::command::`` and ``##[command]``.
_COMMANDS = re.compile(r":(?=:)|##(?=\[)")

#: What GitHub takes for the beginning of an address; its dot is escaped too.
_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)

#: What begins a list or underlines a heading where it stands first on a line.
_START = re.compile(r"^(\d+(?=[.)])|)([-+=.)])")


def plain(text: str) -> str:
    """The text on one line, with everything invisible written out: ``\\x1b``, ``\\u202e``; line ends become spaces.

    What a continuous-integration runner would take for a command is broken by a space: ``: :error: :``.

    >>> plain("a\\tb\\x1b[31m")
    'a b\\\\x1b[31m'
    """
    line = "".join(_visible(character) for character in " ".join(text.splitlines()).replace("\t", " "))
    return _COMMANDS.sub(r"\g<0> ", line)


def markdown(text: str) -> str:
    """:func:`plain` text in which no character is markup, for a Markdown line, its middle or a table cell."""
    line = plain(text).strip()
    escaped = "".join(c if _tame(c, line[i + 1 : i + 2]) else f"&#{ord(c)};" for i, c in enumerate(line))
    return _START.sub(lambda found: f"{found[1]}&#{ord(found[2])};", _ADDRESS.sub(r"\1&#46;", escaped))


def _tame(character: str, following: str) -> bool:
    """Whether a character can stand as it is; a colon can where no address or emoji code may begin with it."""
    if character == ":":
        return following in ("", " ")
    return not character.isascii() or character.isalnum() or character in _TAME


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
