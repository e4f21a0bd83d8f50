"""Docstrings, signatures and tables as Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_TERM = re.compile(r"^(`*[a-z_][\w.*]*`*(?:, `*[a-z_][\w.*]*`*)*): (.*)$")


def cell(text: str) -> str:
    """Text inside a table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with its head; empty without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines] if lines else []


def tidy(text: str) -> str:
    """Leave one empty line between blocks, and no trailing spaces."""
    kept: list[str] = []
    for line in text.splitlines():
        if line or (kept and kept[-1]):
            kept.append(line.rstrip())
    return "\n".join(kept).rstrip() + "\n"


def prose(docstring: str | None) -> list[str]:
    """Convert a docstring's paragraphs; ``Args``, ``Attributes`` and lines ``name: text`` become lists."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        if paragraph.startswith("    "):
            lines += ["```text", inspect.cleandoc(paragraph), "```", ""]
            continue
        rows = _items(paragraph)
        lines += [_inline(row) for row in rows] + [""]
    return lines


def _items(paragraph: str) -> list[str]:
    head, _, section = paragraph.partition("\n")
    if head in ("Args:", "Attributes:"):
        paragraph = textwrap.dedent(section)
    found = [_TERM.match(line) for line in paragraph.splitlines()]
    if found[0] is None or not paragraph:
        return [" ".join(paragraph.split())]
    rows: list[str] = []
    for line, term in zip(paragraph.splitlines(), found, strict=True):
        if term is not None:
            names = ", ".join(f"`{name.strip(' `')}`" for name in term[1].split(","))
            rows.append(f"- {names}: {term[2]}")
        else:
            rows[-1] += f" {line.strip()}"
    return rows


def _inline(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`").replace("<", "&lt;")


def signature(name: str, thing: Any) -> str:
    """The signature of a function; long ones have one parameter per line."""
    return _signature(name, thing).replace("'", '"')


def _signature(name: str, thing: Any) -> str:
    about = inspect.signature(thing)
    parts, starred = [], False
    for parameter in about.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts, starred = [*parts, "*"], True
        if parameter.name != "self":
            parts.append(_parameter(parameter))
    back = "" if about.return_annotation is about.empty else f" -> {about.return_annotation}"
    line = f"{name}({', '.join(parts)}){back}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){back}"


def _field(f: dataclasses.Field[Any]) -> str:
    if f.default is not dataclasses.MISSING:
        return f"{f.name}: {f.type} = {f.default!r}"
    return f"{f.name}: {f.type}" + (" = ..." if f.default_factory is not dataclasses.MISSING else "")


def _parameter(parameter: inspect.Parameter) -> str:
    name = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
    text = name if parameter.annotation is parameter.empty else f"{name}: {parameter.annotation}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def described(name: str, thing: Any, heading: str = "##", *, members: bool = True) -> list[str]:
    """A class or a function: heading, signature, docstring and, if ``members``, a class' public methods.

    Fields of a dataclass carry their type and default where the docstring describes them.
    """
    lines = [f"{heading} `{name}`", ""]
    if dataclasses.is_dataclass(thing):
        lines += _with_fields(_own_prose(thing), thing)
    elif inspect.isclass(thing):
        lines += _own_prose(thing)
    else:
        lines += ["```python", signature(name, thing), "```", "", *_own_prose(thing)]
    if members and inspect.isclass(thing):
        lines += ["", *(_member(name, value) for name, value in vars(thing).items() if _is_method(thing, name))]
    return [*lines, ""]


def _with_fields(lines: list[str], thing: Any) -> list[str]:
    """Add types and defaults to the list of attributes, and the other fields."""
    fields = {f.name: _field(f).replace("'", '"') for f in dataclasses.fields(thing)}
    shown: set[str] = set()
    typed = []
    for line in lines:
        entry = re.match(r"^- ((?:`\w+`(?:, )?)+): ", line)
        names = re.findall(r"`(\w+)`", entry[1]) if entry else []
        if entry and set(names) <= set(fields):
            shown |= set(names)
            line = f"- {', '.join(f'`{fields[name]}`' for name in names)}: {line[entry.end() :]}"
        typed.append(line)
    rest = [f"`{field}`" for name, field in fields.items() if name not in shown]
    return [*typed, "", f"Fields: {', '.join(rest)}."] if rest else typed


def _own_prose(thing: Any) -> list[str]:
    text = thing.__doc__ or ""
    return [] if text.startswith(f"{getattr(thing, '__name__', '')}(") else prose(text)


def _is_method(thing: type, name: str) -> bool:
    value = vars(thing)[name]
    return not name.startswith("_") and bool(
        (inspect.isfunction(value) or isinstance(value, property)) and inspect.getdoc(value)
    )


def _member(name: str, value: Any) -> str:
    shown = name if isinstance(value, property) else signature(name, value).replace("\n", " ")
    text = " ".join(line for line in prose((inspect.getdoc(value) or "").split("\n\n")[0]) if line)
    return f"- `{' '.join(shown.split())}`: {first_sentence(text)}"


def first_sentence(text: str) -> str:
    """The text up to the first full stop before a capital letter."""
    return re.split(r"(?<=[a-z0-9`)][.]) (?=[A-Z`])", text)[0]
