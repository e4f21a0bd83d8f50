"""JSON values as YAML that dpspec reads back to the same values, with a comment beside each where one is wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from dpspec.contract import Json, Path

#: Text that needs no quotes, unless it would be read as a number or the like.
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./<>=+ -]*(?<! )")

#: Python writes 1e-05 and 1e+16 where people write 1e-5 and 1e16.
_LONG_EXPONENT = re.compile(r"e\+?(-?)0*", re.ASCII)

#: What runners of continuous integration obey wherever it stands in a log.
_OBEYED = re.compile(r"##(?=\w*\[)")

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}

#: The column at which comments begin where the line leaves room.
_COMMENT_COLUMN = 40

#: What to write behind the value at a path; empty for nothing.
Comment = Callable[[Path], str]


def to_yaml(value: Mapping[str, Json], comment: Comment = lambda path: "") -> str:
    """A mapping as a YAML document in block style; lists of scalars stay on one line."""
    return "".join(f"{line}\n" for line in _mapping(value, (), 0, comment))


def _mapping(value: Mapping[str, Json], path: Path, depth: int, comment: Comment) -> Iterator[str]:
    for key, item in value.items():
        yield from _entry(f"{'  ' * depth}{scalar(key)}:", item, (*path, key), depth, comment)


def _entry(head: str, item: Json, path: Path, depth: int, comment: Comment) -> Iterator[str]:
    if _on_one_line(item):
        yield _commented(f"{head} {_flow(item)}", comment(path))
        return
    yield _commented(head, comment(path))
    if isinstance(item, Mapping):
        yield from _mapping(item, path, depth + 1, comment)
        return
    for index, part in enumerate(item):
        where: Path = (*path, index)
        lead = "  " * (depth + 1)
        if isinstance(part, Mapping) and part:
            # The first key stands behind the dash, the others line up below it.
            for number, line in enumerate(_mapping(part, where, depth + 2, comment)):
                yield f"{lead}- {line.lstrip()}" if number == 0 else line
        else:
            yield from _entry(f"{lead}-", part, where, depth + 1, comment)


def _on_one_line(item: Json) -> bool:
    if isinstance(item, Mapping):
        return not item
    return not isinstance(item, list | tuple) or all(not isinstance(x, Mapping | list | tuple) for x in item)


def _flow(item: Json) -> str:
    if isinstance(item, Mapping):
        return "{}"
    if isinstance(item, list | tuple):
        return f"[{', '.join(scalar(x) for x in item)}]"
    return scalar(item)


def _commented(line: str, comment: str) -> str:
    return f"{line.ljust(_COMMENT_COLUMN)}  # {comment}" if comment else line


def scalar(value: Json) -> str:
    """One scalar; text is quoted wherever it could be read as anything else."""
    from dpspec.language.reading.yaml_syntax import read_scalar

    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _LONG_EXPONENT.sub(r"e\1", repr(value))
    if _PLAIN.fullmatch(value) and _stays_text(value, read_scalar):
        return str(value)
    return _OBEYED.sub(r"\\x23#", f'"{"".join(_quoted(character) for character in value)}"')


def _stays_text(text: str, read: Callable[[str], Json]) -> bool:
    try:
        return bool(read(text) == text)
    except ValueError:
        return False


def _quoted(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
