"""The page of what plugins compute and test with, read from the sources: it imports none of them, nor torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dpspec
import dpspec.accounting as accounting
import dpspec.testing as suites
from generator.markdown import cell, described, prose, table, tidy

_ROOT = Path(dpspec.__file__).parent

#: What there is, in the order in which an author meets it.
_MODULES = (
    (
        "A whole mechanism, from one bound and one attack",
        "The classes that `dpspec new plugin` starts from: core derives plan, trials, evidence, findings and checks.",
        ("kit.simple", "kit.attacked", "kit.specs"),
    ),
    (
        "What mechanisms that train by DP-SGD have in common",
        "For an `Audit` of one's own, all from `dpspec.kit` itself; headings say where they live. Steps are read as "
        "`dpspec.contract.Phase`.",
        ("kit.findings", "kit.users", "kit.as_run", "kit.trials", "kit.tables"),
    ),
    (
        "From an attack to a lower bound",
        "`Audit.conclude` yields what an attack counted as `Evidence`; these say what the counts show.",
        (
            "stats.attacks.evidence_tests",
            "stats.attacks.many_run",
            "stats.attacks.thresholds",
            "stats.attacks.sequential",
            "stats.attacks.one_run",
            "stats.attacks.guess_counts",
        ),
    ),
    ("", "", ("stats.binomial", "stats.attacks.gaussian_fit", "stats.utility")),
    (
        "What an audit will be able to show",
        "For `Audit.plan`, before anything is trained.",
        ("stats.conformance.expectations",),
    ),
    (
        "Whether what ran is what was declared",
        "The tests of DP-SGD, ready to be used. A mechanism of another kind brings its own, as a scaffolded one does.",
        (
            "stats.conformance.run_checks",
            "stats.conformance.evidence.run",
            "training.measure.run_evidence",
            "training.measure.update_statistics",
            "training.measure.observers",
        ),
    ),
    (
        "Upper bounds",
        "A step is a pair of laws, of outcomes with a record and without; `PrivacyLoss` composes pairs, with certified "
        "errors. Import all of these from `dpspec.accounting` itself; headings say where they live.",
        tuple(f"accounting.{name}" for name in ("privacy_loss", "mixture", "laplace", "gaussian", "grid")),
    ),
    ("", "", ("accounting.discrete",)),
    ("", "", ("accounting.rdp",)),
    ("", "", ("accounting.tradeoff", "accounting.curves")),
    ("", "", tuple(f"accounting.{name}" for name in ("numerics", "findings", "boundary"))),
    (
        "Training",
        "What needs torch; import it inside `trials`. A loop with noise, batches or updates of one's own is `parts_of` "
        "a job, some of them replaced by `dataclasses.replace`, and `train_with`.",
        ("training.loop.native", "training.loop.dpsgd", "training.loop.schedule", "training.canaries"),
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
    hidden = _ENGINE
    if name.startswith("accounting.") and name != "accounting.gaussian":  # public there is what the package exports
        hidden = frozenset(getattr(node, "name", "") for node in tree.body) - set(accounting.__all__)
    return [f"### `dpspec.{name}`\n", *idea, *table(("name", ""), _rows(tree, hidden)), ""]


def _rows(tree: ast.Module, hidden: frozenset[str]) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in hidden:
            yield _row(node.name, node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in hidden:
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
