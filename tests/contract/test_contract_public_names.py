"""The names of the tools for plugins, and their parameters, are those of the last release, or have old names.

``public_names.json`` lists the last release; ``python tests/support/surface.py`` prints the present names.
"""

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.surface import surface

from dpspec import __version__, renames
from dpspec.renames import RENAMED, Rename, expired, old_names

RELEASED = json.loads(Path(__file__).with_name("public_names.json").read_text())
PRESENT = surface()


def problem(released: list[list[Any]] | None, present: list[list[Any]] | None) -> str:
    """Why a call that the release accepts may fail now; empty if none may."""
    if released is None or present is None:
        return "" if released is None else "can no longer be called"
    names = {name: (kind, optional) for name, kind, optional in present}
    takes_any = any(kind == "VAR_KEYWORD" for _, kind, _ in present)
    for name, kind, optional in released:
        if name not in names:
            if not (takes_any or kind in ("VAR_POSITIONAL", "VAR_KEYWORD", "POSITIONAL_ONLY")):
                return f"lost the parameter {name}"
        elif optional and not names[name][1] and names[name][0] not in ("VAR_POSITIONAL", "VAR_KEYWORD"):
            return f"requires {name}"
    before = {name for name, *_ in released}
    added = [
        n for n, (kind, optional) in names.items() if n not in before and not optional and not kind.startswith("VAR")
    ]
    positional = [n for n, kind, _ in released if kind == "POSITIONAL_OR_KEYWORD" and n in names]
    order = [n for n in names if n in positional]
    return f"requires the new {', '.join(added)}" if added else "" if order == positional else "has another order"


@pytest.mark.parametrize("module", sorted(RELEASED))
def test_names_and_parameters_of_the_last_release_stay(module: str) -> None:
    renamed, problems = RENAMED.get(module, {}), []
    for name, released in RELEASED[module].items():
        if name in renamed:
            continue
        present = PRESENT[module].get(name)
        if present is None:
            if hasattr(sys.modules[module], name):  # a tool that is no longer listed, and still importable
                continue
            problems.append(f"{name} is gone: keep it in RENAMED of dpspec/renames.py")
            continue
        problems += [f"{name} {p}" for p in [problem(released["parameters"], present["parameters"])] if p]
        for method, parameters in released["methods"].items():
            if method not in present["methods"]:
                # The suites' tests may move among classes: what counts is that the class still has them.
                inherited = hasattr(getattr(sys.modules[module], name), method)
                problems += [] if inherited else [f"{name}.{method} is gone"]
            elif p := problem(parameters, present["methods"][method]):
                problems.append(f"{name}.{method} {p}")
    assert problems == []


@pytest.mark.parametrize(
    ("released", "present", "says"),
    [
        ([["a", "POSITIONAL_OR_KEYWORD", False]], [], "lost the parameter a"),
        ([], [["a", "KEYWORD_ONLY", False]], "requires the new a"),
        ([["a", "KEYWORD_ONLY", True]], [["a", "KEYWORD_ONLY", False]], "requires a"),
        ([["a", "KEYWORD_ONLY", True]], [["a", "KEYWORD_ONLY", True], ["b", "KEYWORD_ONLY", True]], ""),
        ([], None, "can no longer be called"),
    ],
)
def test_broken_calls_are_found(released: Any, present: Any, says: str) -> None:
    assert problem(released, present) == says


def test_old_names_give_the_new_object_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("renamed_module")
    module.new = object()  # type: ignore[attr-defined]
    module.__getattr__ = old_names("renamed_module")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "renamed_module", module)
    monkeypatch.setattr(renames, "RENAMED", {"renamed_module": {"old": Rename("new", (0, 3))}})
    with pytest.warns(DeprecationWarning, match="renamed_module.old is now new; the old name works up to dpspec 0.4"):
        assert module.old is module.new  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = module.other
    assert [list(expired(version)) for version in ((0, 4), (0, 5), (1, 0))] == [
        [],
        ["renamed_module.old"],
        ["renamed_module.old"],
    ]


@pytest.mark.parametrize("module", sorted(RENAMED))
def test_modules_with_old_names_find_them(module: str) -> None:
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        getattr(sys.modules[module], "no_such_name")  # noqa: B009


def test_no_old_name_outlives_its_promise() -> None:
    major, minor, *_ = __version__.split(".")
    assert list(expired((int(major), int(minor)))) == []
