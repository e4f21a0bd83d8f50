"""Texts of new specs: a mechanism's example under another name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from dpspec.cli.output import require_known
from dpspec.contract import Json
from dpspec.contract.catalog import PROJECT_HINT, Catalog, Offered
from dpspec.data.source import COMMON
from dpspec.errors import PluginError, UsageError

#: The comment with the schema's path for editors.
MODELINE = "# yaml-language-server: $schema="
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)
_DESCRIPTION_LINE = re.compile(r"^description:.*\n", re.MULTILINE)


def starter_spec(
    catalog: Catalog,
    mechanism: str | None,
    *,
    schema: Path,
    name: str,
    model: str | None = None,
    data: str | None = None,
) -> str:
    """The example of ``mechanism`` (None: the first that trains a model) under another name, with a model and data."""
    if not catalog.mechanisms:
        raise PluginError("no installed plugin offers a mechanism (see `dpspec plugins`)")
    training = [kind for kind, offered in catalog.mechanisms.items() if "\nmodel:" in str(offered.provider.example)]
    kind = mechanism or min(training or catalog.mechanisms)
    require_known("mechanism", kind, sorted(catalog.mechanisms), "installed")
    example = str(catalog.mechanisms[kind].provider.example).strip("\n")
    lines = [line for line in example.split("\n") if not line.startswith(MODELINE)]
    body = _NAME_LINE.sub(f"name: {name}", "\n".join(lines), count=1) + "\n"
    for block, chosen, offers in (("model", model, catalog.models), ("data", data, catalog.datasets)):
        if chosen is not None:
            body = _DESCRIPTION_LINE.sub("", body, count=1)  # it describes the example's
            body = _with_kind(body, block, chosen, offers)
    return f"{MODELINE}{schema.as_posix()}\n{body}"


def _with_kind(body: str, block: str, kind: str, offers: Mapping[str, Offered]) -> str:
    """Replace a block of a spec by one of ``kind`` with its own required keys, and defaults of a project's function."""
    require_known(block, kind, sorted(offers), "installed", PROJECT_HINT)
    offered = offers[kind]
    keys: dict[str, Json] = {"kind": kind}
    if offered.code:
        common = COMMON.keys() | {"public"}
        kind_keys = {key: value for key, value in offered.provider.schema["properties"].items() if key not in common}
        keys |= {key: value["default"] for key, value in kind_keys.items() if "default" in value}
    pattern = re.compile(rf"^{block}:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
    if not pattern.search(body):
        raise UsageError(f"the mechanism's example has no {block}: choose another --mechanism")
    flow = ", ".join(
        f"{key}: {json.dumps(value)}" if key != "kind" else f"kind: {value}" for key, value in keys.items()
    )
    return pattern.sub(lambda _: f"{block}: {{{flow}}}\n", body, count=1)
