"""The spec that people start from: a mechanism's own example, under their name."""

from __future__ import annotations

import re
from pathlib import Path

from dpspec.contract.catalog import Catalog
from dpspec.errors import PluginError, UsageError
from dpspec.text import closest, did_you_mean, listed, quoted

#: What tells editors where the schema of a spec is.
MODELINE = "# yaml-language-server: $schema="
_NAME = re.compile(r"^name:.*$", re.MULTILINE)
_SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def starter_spec(catalog: Catalog, mechanism: str | None, *, schema: Path, name: str) -> str:
    """The example of ``mechanism`` (the first installed one if None) under another name.

    Raises ``UsageError`` where the mechanism or the name will not do, ``PluginError`` where there is none at all.
    """
    require_name(name)
    if not catalog.mechanisms:
        raise PluginError("no installed plugin offers a mechanism (see `dpspec plugins`)")
    kind = sorted(catalog.mechanisms)[0] if mechanism is None else mechanism
    if kind not in catalog.mechanisms:
        installed = sorted(catalog.mechanisms)
        suggestion = did_you_mean(closest(kind, installed))
        raise UsageError(f"unknown mechanism {quoted(kind)}{suggestion} (installed: {listed(installed)})")
    example = str(catalog.mechanisms[kind].provider.example).strip("\n")
    lines = [line for line in example.split("\n") if not line.startswith(MODELINE)]
    body = _NAME.sub(f"name: {name}", "\n".join(lines), count=1)
    return f"{MODELINE}{schema.as_posix()}\n{body}\n"


def require_name(name: str) -> None:
    """Raise ``UsageError`` for what no spec is called."""
    if not _SPEC_NAME.fullmatch(name):
        raise UsageError(f"invalid spec name {quoted(name)}: use letters, digits, dots, dashes and underscores")
