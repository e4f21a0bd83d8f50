"""The page of every key of a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dpspec.cli.explain import Key, keys
from dpspec.contract.catalog import Catalog
from dpspec.language.blocks import reference
from generator.markdown import cell, tidy

#: Limits that no ordinary spec reaches; ``dpspec explain`` prints them.
_WIDE = re.compile(r", (?:at most \d{4,}(?: \w+)?|at least [01]|not empty)(?=[,;]|$)")

#: A phase repeats the keys of its block.
_PHASE = "mechanism.phases."


def page(catalog: Catalog) -> str:
    """Every key of a spec, by block and kind."""
    known = [key for key in keys(reference(catalog)) if not key.path.startswith(_PHASE)]
    lines = [
        "# The spec: every key\n",
        "`dpspec explain KEY` prints the full description and limits of a key, also of installed plugins; "
        "`dpspec schema` prints the JSON Schema for editors. `mechanism.phases` is a list of maps with keys of "
        "`mechanism` and their own `steps`. A value is described where it first appears.\n",
    ]
    for top in dict.fromkeys(key.path.split(".")[0] for key in known):
        block = [key for key in known if key.path == top or key.path.startswith(f"{top}.")]
        head = next(key for key in block if key.path == top and not key.chooser)
        lines += [f"\n## `{top}`\n", f"{cell(head.description)} ({cell(head.type)})\n"]
        lines += _lists([key for key in block if key is not head])
    lines = list(_once("\n".join(lines).split("\n")))
    return tidy("\n".join(lines))


def _once(lines: Sequence[str]) -> Iterator[str]:
    """The lines without the descriptions of values that stand under an earlier key."""
    seen = set()
    for line in lines:
        if not line.startswith("    - ") or line not in seen:
            yield line
        seen.add(line)


def _lists(block: Sequence[Key]) -> Iterator[str]:
    """Unconditional keys first."""
    for where in sorted(dict.fromkeys(key.where for key in block), key=bool):
        if where:
            yield f"\n### When {cell(where)}\n"
        yield "\n".join(_entry(key) for key in block if key.where == where) + "\n"


def _entry(key: Key) -> str:
    values = _WIDE.sub("", key.type.replace(" | ", ", "))
    head, *choices = key.description.strip().split("\n") or [""]
    if not choices and " | " not in key.type:
        head = " ".join(re.split(r"(?<=[a-z0-9`)][.]) (?=[A-Z])", head)[:1])
    text = f": {cell(head)}" if head else ""
    return "\n".join([f"- `{key.path}` ({cell(values)}){text}", *(f"    - {cell(choice)}" for choice in choices)])
