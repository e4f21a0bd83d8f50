"""The page of every key of a spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.cli.spec_keys import Key, alike, keys, when
from dpspec.contract.catalog import Catalog
from dpspec.language.bundle import reference
from generator.markdown import cell, table, tidy

#: Blocks whose keys are mostly the same for all kinds: told once, with the kinds that a key depends on.
_COMMON = ("threat_model", "claims", "audit")


def page(catalog: Catalog) -> str:
    """Every key of a spec, by block and kind."""
    known = list(keys(reference(catalog)))
    lines = [
        "# The spec: every key\n",
        "`dpspec explain KEY` says the same of one key, and covers the plugins that you have installed; "
        "`dpspec schema` prints the JSON Schema for editors.\n",
    ]
    for top in dict.fromkeys(key.path.split(".")[0] for key in known):
        block = [key for key in known if key.path == top or key.path.startswith(f"{top}.")]
        head = next(key for key in block if key.path == top and not key.conditions)
        lines += [f"\n## `{top}`\n", f"{cell(head.description)} ({cell(head.type)})\n"]
        inner = [key for key in block if key is not head]
        cases = _merged(inner, known) if top in _COMMON else [(key.conditions, key) for key in inner]
        lines += _tables(cases)
    return tidy("\n".join(lines))


def _merged(block: Sequence[Key], known: Sequence[Key]) -> list[tuple[tuple[str, ...], Key]]:
    """Each key once for all kinds for which it is the same; those that need no kind first."""
    cases = [(conditions, group[0]) for group in alike(block) for conditions in when(group, known)]
    order = list(dict.fromkeys(conditions for conditions, _ in cases))
    return sorted(cases, key=lambda case: (bool(case[0]), order.index(case[0])))


def _tables(cases: Sequence[tuple[tuple[str, ...], Key]]) -> Iterator[str]:
    for conditions in dict.fromkeys(found for found, _ in cases):
        if conditions:
            yield f"\n### When {cell(' and '.join(map(str, conditions)))}\n"
        rows = [(f"`{k.path}`", cell(k.type), cell(k.description)) for found, k in cases if found == conditions]
        yield "\n".join(table(("key", "value", ""), rows)) + "\n"
