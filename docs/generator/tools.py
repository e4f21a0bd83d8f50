"""The page of the plugin tools, read from the sources: it imports neither numpy nor torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import dpspec
import dpspec.accounting as accounting
import dpspec.data as data
import dpspec.kit as kit
import dpspec.testing as suites
from generator.markdown import cell, described, first_sentence, prose, tidy

_ROOT = Path(dpspec.__file__).parent

#: Modules that the guides refer to. Their names may change with any version.
_UNSTABLE = (
    "stats.attacks.evidence_tests",
    "stats.attacks.curve_lines",
    "stats.attacks.thresholds",
    "stats.conformance.table",
    "stats.utility",
    "training.canaries",
    "training.loop.native",
    "training.measure.run_evidence",
)


def page() -> str:
    """The suites of ``dpspec.testing``, and the names of ``dpspec.kit`` and ``dpspec.accounting``."""
    lines = [
        "# Plugin tools\n",
        "In addition to the [contract](plugins.md), a plugin may use the names on this page. [Compatibility]"
        "(../plugins/compatibility.md) states which of them are stable. `help(NAME)` prints the full documentation "
        "of a name, with types.\n",
        "## Test suites: `dpspec.testing`\n",
        "Subclass a suite and set its class attributes, `kind` first. [How to write a plugin]"
        "(../how-to/write-a-plugin.md#test-it) shows a complete test file. Each test method checks one promise of the "
        "contract, and its docstring states the promise.\n",
    ]
    for name in suites.__all__:
        lines += described(name, getattr(suites, name), "###", members=False)
    lines += [
        "## Building blocks of mechanisms: `dpspec.kit`\n",
        "`kit` has the names of two namespaces, also as `kit.blocks` and `kit.trials`.\n",
        "### Blocks of a mechanism: `kit.blocks`\n",
        *_package(kit, kit.blocks.__all__, methods=True),
        "### Helpers of trials: `kit.trials`\n",
        *_package(kit, kit.trials.__all__, methods=True),
    ]
    lines += ["## Data kinds: `dpspec.data`\n", *_package(data, methods=True)]
    lines += ["## Certified accounting: `dpspec.accounting`\n", *_package(accounting)]
    lines += ["## Statistics and training\n", "Names of these modules may change with any version.\n"]
    for name in _UNSTABLE:
        tree = _tree(name)
        named = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        public = ", ".join(f"`{name}`" for name in named if not name.startswith("_"))
        lines += [f"### `dpspec.{name}`\n", f"{_summary(tree)} Names: {public}.\n"]
    return tidy("\n".join(lines))


def _package(package: ModuleType, names: Sequence[str] | None = None, *, methods: bool = False) -> Iterator[str]:
    """Public names of a package, by default all, by module, each with the first paragraph of its docstring."""
    inside = package.__name__.removeprefix("dpspec.")
    public, shown = set(package.__all__ if names is None else names), set()
    for path in sorted((_ROOT / inside).rglob("*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        tree = _tree(name)
        nodes = [node for node in tree.body if getattr(node, "name", None) in public]
        entries = [entry for node in nodes for entry in _entries(node, methods=methods)]
        if not methods:
            functions = [_called(node) for node in nodes if isinstance(node, ast.FunctionDef)]
            entries = [
                entry for node in nodes if isinstance(node, ast.ClassDef) for entry in _entries(node, methods=False)
            ]
            entries += [f"- {', '.join(functions)}"] if functions else []
        if entries and path.name != "__init__.py":
            shown |= {getattr(node, "name", "") for node in tree.body} & public
            yield "\n".join([f"\n{_summary(tree)}\n", *entries])
    rest = sorted(public - shown)
    if not rest:
        return
    yield f"\nConstants, types, modules and names of other packages: {', '.join(f'`{name}`' for name in rest)}.\n"


def _tree(name: str) -> ast.Module:
    return ast.parse((_ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))


def _entries(node: ast.stmt, *, methods: bool) -> Iterator[str]:
    """A function, or a class, with its public methods and properties if ``methods``."""
    if isinstance(node, ast.FunctionDef):
        yield f"- {_called(node)}: {_summary(node)}"
    elif isinstance(node, ast.ClassDef):
        found = [part for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]
        yield f"- `{node.name}`: {_summary(node)}"
        yield from (f"    - {_called(part)}: {_summary(part)}" for part in found if methods)


def _called(node: ast.FunctionDef) -> str:
    """The name with the names of its parameters."""
    if any(isinstance(mark, ast.Name) and mark.id in ("property", "cached_property") for mark in node.decorator_list):
        return f"`{node.name}`"
    given = [part.arg for part in (*node.args.posonlyargs, *node.args.args) if part.arg not in ("self", "cls")]
    named = [part.arg for part in node.args.kwonlyargs]
    star = [f"*{node.args.vararg.arg}"] if node.args.vararg else ["*"] if named else []
    return f"`{node.name}({', '.join([*given, *star, *named])})`"


def _summary(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    """The first sentence of a docstring."""
    lines = prose((ast.get_docstring(node) or "").split("\n\n")[0])
    text = cell(" ".join(line for line in lines if line)).replace("&amp;lt;", "&lt;")
    return first_sentence(text)
