"""A first spec: a mechanism's own example, with the line that tells editors where the schema is."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from dpspec.contract import Catalog
from dpspec.errors import PluginError, UsageError

_MODELINE = "# yaml-language-server: $schema="
_NAME = re.compile(r"^name:.*$", re.MULTILINE)
_SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def starter_spec(catalog: Catalog, mechanism: str | None, *, schema: Path, name: str) -> str:
    """The example of ``mechanism`` (the first installed one if None) under another name.

    Raises ``UsageError`` where the mechanism or the name will not do, ``PluginError`` where there is none at all.
    """
    if not _SPEC_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a spec: letters, digits, dots, dashes and underscores")
    if not catalog.mechanisms:
        raise PluginError("no installed plugin offers a mechanism (see `dpspec plugins`)")
    kind = sorted(catalog.mechanisms)[0] if mechanism is None else mechanism
    if kind not in catalog.mechanisms:
        close = get_close_matches(kind, catalog.mechanisms, 1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"no mechanism {kind!r}{suggestion} (installed: {', '.join(sorted(catalog.mechanisms))})")
    example = str(catalog.mechanisms[kind].provider.example).strip("\n")
    lines = [line for line in example.split("\n") if not line.startswith(_MODELINE)]
    body = _NAME.sub(f"name: {name}", "\n".join(lines), count=1)
    return f"{_MODELINE}{schema.as_posix()}\n{body}\n"
