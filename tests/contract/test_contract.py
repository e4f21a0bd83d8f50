"""The public API: its packages, and the recorded surface of hook API 1.

Record additions with ``python tests/contract/test_contract.py``.
"""

import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import dpspec.contract
from dpspec.contract import attacks
from dpspec.contract.events import DpspecHooks

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "hook_api_1.json"

#: The public packages. All other modules may change with any version.
PUBLIC = ("dpspec", "dpspec.contract", "dpspec.kit", "dpspec.data", "dpspec.testing", "dpspec.accounting")


@pytest.mark.parametrize(
    "package", [pytest.param("dpspec", marks=pytest.mark.recorder), *(name for name in PUBLIC if name != "dpspec")]
)
def test_public_names_exist_and_are_documented(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        member = getattr(module, name)
        assert inspect.getdoc(member) or not (inspect.isclass(member) or inspect.isroutine(member)), name


def test_the_promise_names_the_public_packages() -> None:
    page = (ROOT / "docs/plugins/compatibility.md").read_text(encoding="utf-8")
    promise = page.partition("## Public API")[2].partition("Nothing else is promised")[0]
    assert sorted(set(re.findall(r"`(dpspec[.a-z]*)`", promise))) == sorted(PUBLIC)


def test_guides_and_templates_for_plugins_import_public_modules() -> None:
    guides = [*ROOT.glob("docs/plugins/*.md"), ROOT / "docs/how-to/write-a-plugin.md"]
    templates = [*ROOT.glob("dpspec/cli/plugin_template/*.py.tmpl")]
    public = (*PUBLIC, "dpspec.contract.attacks", "dpspec.contract.providers", "dpspec.contract.events")
    for path in (*guides, *templates):
        text = path.read_text(encoding="utf-8")
        imported = re.findall(r"^\s*(?:from|import) (dpspec[.\w]*)", text, re.MULTILINE)
        assert set(imported) <= set(public), path


def surface() -> dict[str, Any]:
    meanings = {name: getattr(dpspec.contract, name) for name in dpspec.contract.__all__}
    meanings |= {name: getattr(attacks, name) for name in attacks.__all__}
    names = {name: _described(meanings[name]) for name in sorted(meanings)}
    hooks = {n: str(inspect.signature(f)) for n, f in vars(DpspecHooks).items() if n.startswith("dpspec_")}
    return {"api": dpspec.contract.HOOK_API, "names": names, "hooks": hooks}


def _described(thing: Any) -> Any:
    if not inspect.isclass(thing):
        if inspect.isfunction(thing):
            return {"arguments": str(inspect.signature(thing))}
        return {"value": sorted(thing) if isinstance(thing, frozenset) else type(thing).__name__}
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(thing):
        found["fields"] = {f.name: [str(f.type), _default(f)] for f in dataclasses.fields(thing)}
    methods = {
        name: str(inspect.signature(member)) if inspect.isfunction(member) else "property"
        for name, member in vars(thing).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    if methods:
        found["methods"] = methods
    if abstract := sorted(getattr(thing, "__abstractmethods__", ())):
        found["abstract"] = abstract
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "made"
    return "required" if field.default is dataclasses.MISSING else repr(field.default)


def test_the_surface_is_the_recorded_one() -> None:
    """A plugin relies on every recorded name: a change of the record is an addition with a default, or none."""
    assert json.loads(RECORD.read_text(encoding="utf-8")) == surface(), f"run python {Path(__file__).name} to record it"


if __name__ == "__main__":
    RECORD.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
