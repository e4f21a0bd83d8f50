"""The page of what plugins compute and test with, read from the sources: it imports none of them, nor torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dpspec
import dpspec.testing as suites
from generator.markdown import cell, described, prose, table, tidy

_ROOT = Path(dpspec.__file__).parent

#: What there is, in the order in which an author meets it.
_MODULES = (
    (
        "From an attack to a lower bound",
        "`Audit.conclude` yields what an attack counted as `Evidence`; these say what the counts show.",
        ("stats.nulls", "stats.manyrun", "stats.thresholds", "stats.sequential", "stats.onerun", "stats.ladder"),
    ),
    ("", "", ("stats.binomial", "stats.gdp", "stats.scores", "stats.utility")),
    (
        "What an audit will be able to show",
        "For `Audit.plan`, before anything is trained.",
        ("stats.power", "stats.foreseen"),
    ),
    (
        "Whether what ran is what was declared",
        "The tests of DP-SGD, ready to be used. A mechanism of another kind brings its own, as a scaffolded one does.",
        ("stats.conformance", "training.conformance", "training.observers"),
    ),
    (
        "Upper bounds",
        "A step is a pair of laws, of outcomes with a record and without; `pld` composes pairs, with certified errors.",
        ("accounting.pld", "accounting.pair", "accounting.discrete", "accounting.densities", "accounting.laplace"),
    ),
    ("", "", ("accounting.gaussian", "accounting.mixture", "accounting.group", "accounting.rdp", "accounting.convert")),
    ("", "", ("accounting.tradeoff", "accounting.polygon", "accounting.calibrate", "accounting.interval")),
    (
        "Training",
        "What needs torch; import it inside `trials`.",
        ("training.batched", "training.canaries", "training.input_canaries"),
    ),
)

#: What the engine alone needs.
_ENGINE = frozenset({"learn", "made", "require_counts"})


def page() -> str:
    """The suites of ``dpspec.testing`` and the functions that plugins may call."""
    lines = [
        "# What plugins compute and test with\n",
        "Beside the [contract](plugins.md) a plugin may use these. The suites belong to [the promise for hook API 1]"
        "(../plugins/compatibility.md); the functions follow the package's version.\n",
        "## Test suites\n",
        "Import them from `dpspec.testing` and set class attributes, `kind` first; "
        "[how to write a plugin](../how-to/write-a-plugin.md#test-it) shows a whole test file. Every method is one "
        "promise of the contract.\n",
    ]
    for name in suites.__all__:
        lines += described(name, getattr(suites, name), "###")
    for heading, text, modules in _MODULES:
        lines += [f"## {heading}\n", f"{text}\n"] if heading else []
        for module in modules:
            lines += _module(module)
    return tidy("\n".join(lines))


def _module(name: str) -> list[str]:
    tree = ast.parse((_ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
    idea = prose((ast.get_docstring(tree) or "").split("\n\n")[0])
    return [f"### `dpspec.{name}`\n", *idea, *table(("name", ""), _rows(tree)), ""]


def _rows(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in _ENGINE:
            yield _row(node.name, node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield _shown(node.name), _first(node)
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                    yield _row(f"{node.name}.{part.name}", part)


def _row(name: str, node: ast.FunctionDef) -> tuple[str, str]:
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
        return _shown(name), _first(node)
    given = ast.unparse(node.args).removeprefix("self").removeprefix("cls").removeprefix(", ")
    back = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return _shown(f"{name}({given}){back}"), _first(node)


def _shown(text: str) -> str:
    return f"`{cell(text).replace('&lt;', '<')}`"


def _first(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The first paragraph of a docstring."""
    lines = prose((ast.get_docstring(node) or "").split("\n\n")[0])
    return " ".join(line for line in lines if line).replace("|", "\\|")
