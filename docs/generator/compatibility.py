"""The page of versions and promises for plugins, from the versions that the code writes and reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from dpspec import __version__
from dpspec.contract.events import HOOK_API
from dpspec.contract.results import SCHEMA as RESULT
from dpspec.engine.storage.trial_store import SCHEMA as TRIAL
from dpspec.renames import KEPT, RENAMED, RENAMED_ARGUMENTS
from dpspec.tested_versions import TESTED
from dpspec_recording.folder.events import FIRST_FORMAT, FORMAT
from generator.markdown import table

_TEXT = Path(__file__).with_name("compatibility.md.tmpl")


def page() -> str:
    """The text of ``compatibility.md.tmpl`` beside this module with the versions in it."""
    words = {
        "api": str(HOOK_API),
        "result": RESULT,
        "kept": str(KEPT),
        "dependency": scaffold_dependency(),
        "versions": "\n".join(table(("format or version", "this release"), [*_versions()])),
        "renames": "\n".join(_renames()),
    }
    text = _TEXT.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found[1]], text)


def scaffold_dependency() -> str:
    """The dependency on dpspec of a new plugin."""
    template = (files("dpspec.cli") / "plugin_template" / "pyproject.toml.tmpl").read_text("utf-8")
    found = re.search(r'^dependencies = \["(dpspec[^"]*)"\]$', template, re.MULTILINE)
    assert found is not None
    return found[1]


def _versions() -> Iterator[tuple[str, str]]:
    yield "dpspec", __version__
    yield "hook API (`DPSPEC_API`)", f"{HOOK_API}; a plugin of another one is listed as broken"
    yield "specs (`dpspec:`)", "1"
    yield "results", f"writes and reads `{RESULT}`; older ones are refused: run their specs again"
    yield "stored trials", f"writes and reads `{TRIAL}`"
    yield "recordings", f"writes format {FORMAT} and reads those from {FIRST_FORMAT} on; record older ones again"
    yield "dependency of a new plugin", f"`{scaffold_dependency()}`"
    for library, (oldest, newest) in TESTED.items():
        yield f"tested with {library}", f"{oldest} to {newest}"


def _renames() -> Iterator[str]:
    rows = [
        (f"`{module}.{old}`", f"`{rename.new}`", f"{rename.since[0]}.{rename.since[1] + KEPT}")
        for module, names in RENAMED.items()
        for old, rename in names.items()
    ]
    rows += [
        (f"`{old}` of `{name}`", f"`{rename.new}`", f"{rename.since[0]}.{rename.since[1] + KEPT}")
        for name, names in RENAMED_ARGUMENTS.items()
        for old, rename in names.items()
    ]
    yield from table(("old name", "new name", "removed in"), rows)
