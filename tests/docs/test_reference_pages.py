"""The pages of docs/reference match the code and are complete."""

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import results as factory

import dpspec
import dpspec.contract
import dpspec.testing
from dpspec.cli.app import command_names
from dpspec.contract import FrozenMap
from dpspec.contract.executed import ExecutedOrigin, ExecutedSection
from dpspec.contract.results import AuditResult
from dpspec.reporters.disclosures import CLAUSES, lines
from dpspec.reporters.words import VERDICTS

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference"

#: The generated pages outside of that folder, seen from it.
OTHERS = ["../explanation/mistakes.md", "../plugins/compatibility.md"]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generator: ModuleType) -> dict[str, str]:
    return generator.pages()


def test_every_page_is_generated(pages: dict[str, str]) -> None:
    assert sorted(pages) == [*OTHERS, *sorted(path.name for path in REFERENCE.iterdir())]


@pytest.mark.parametrize("name", [*OTHERS, *sorted(path.name for path in REFERENCE.iterdir())])
def test_generated_pages_say_what_the_code_says(name: str, pages: dict[str, str]) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == pages[name], "run: python docs/generate.py"


#: Described on the page of ``dpspec`` alone, because anchors do not distinguish ``model`` from ``Model``.
DECORATORS = ("backend", "canary", "dataset", "loss", "model", "reporter", "score")
HOOKS = [name for name in vars(dpspec.contract.DpspecHooks) if name.startswith("dpspec_")]


@pytest.mark.parametrize(
    ("page", "level", "names"),
    [
        ("python.md", "##", dpspec.__all__),
        ("plugins.md", "###", [name for name in dpspec.contract.__all__ if name not in DECORATORS]),
        ("plugins.md", "###", HOOKS),
        ("plugin-tools.md", "###", dpspec.testing.__all__),
    ],
)
def test_every_name_is_described(page: str, level: str, names: list[str], pages: dict[str, str]) -> None:
    assert [name for name in names if f"\n{level} `{name}`\n" not in pages[page]] == []


@pytest.mark.parametrize("package", ["accounting", "kit"])
def test_every_tool_is_described_and_can_be_imported(package: str, pages: dict[str, str]) -> None:
    module = importlib.import_module(f"dpspec.{package}")
    section = pages["plugin-tools.md"].split(f": `dpspec.{package}`\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"^- `(\w+)", section, re.MULTILINE))
    lists = re.findall(r"^- `\w+\(.*\)`, `.*$", section, re.MULTILINE)
    listed |= {name for functions in lists for name in re.findall(r"`(\w+)\(", functions)}
    listed |= set(re.findall(r"`(\w+)`", section.split("Constants, types, modules")[1].split("\n\n")[0]))
    assert listed >= set(module.__all__)
    assert all(hasattr(module, name) for name in listed)


def test_unstable_modules_have_the_names_that_are_listed(pages: dict[str, str]) -> None:
    sections = pages["plugin-tools.md"].split("\n### `dpspec.")[1:]
    for module, text in (section.split("`\n", 1) for section in sections):
        names = re.findall(r"`(\w+)`", text.split(" Names: ")[1])
        assert names, module
        if not module.startswith("training."):  # those import torch
            assert all(hasattr(importlib.import_module(f"dpspec.{module}"), name) for name in names), module


def test_every_command_and_option_is_described(pages: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from dpspec.cli.app import declare, main

    page = pages["commands.md"]
    groups = {name: [str(command.name) for command in declare(name).registered_commands] for name in command_names()}
    # the commands of a group have sections of their own; the registered one of a single command has its name
    names = [f"{name} {part}" if parts != [name] else name for name, parts in groups.items() for part in parts]
    for name in names:
        assert f"\n## `dpspec {name}`\n" in page
        main([*name.split(), "--help"])
        section = page.split(f"\n## `dpspec {name}`\n")[1].split("\n## ")[0]
        told = capsys.readouterr().out.split()
        options = {word.strip(",") for word in told if word.startswith("--") and word != "--help"}
        assert all(option in section for option in options), name


def test_the_glossary_has_every_verdict_and_every_term_of_reports() -> None:
    entries = re.findall(
        r"^- \*\*(.*?)\*\*", (DOCS / "explanation" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    words = {word.strip("`() ") for entry in entries for word in re.split(r"[,(]", entry)}
    terms = (
        "epsilon",
        "delta",
        "mu",
        "canary",
        "control",
        "direction",
        "scope",
        "conformance",
        "certified",
        "deviates",
    )
    assert {*VERDICTS, *terms, "lower bound", "upper bound"} <= words


def test_each_line_of_the_statement_has_clauses_on_its_page(pages: dict[str, str]) -> None:
    clauses = pages["statement.md"].partition("## Three kinds of runs")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", clauses, re.MULTILINE)
    assert [key for key, _ in rows] == list(CLAUSES)
    assert all(any(cell.strip() for cell in cells.split("|")) for _, cells in rows)


#: Every fact that a spec or a file of --declare can state.
FACTS = {
    "owner": "Clinic A",
    "deployment": {
        "tuning": "On public data",
        "earlier_releases": "None",
        "security": "Two engineers have access",
        "side_channels": "The generator is one of the operating system",
    },
    "data": {"kind": "csv", "collection": {"source": "A clinic", "preparation": "None", "subgroups": "None measured"}},
}


def declared(**changes: Any) -> AuditResult:
    """An audit that declares all facts, found no deviation and proved its claim; mu-GDP has a rate."""
    first = factory.audit().findings[0]
    rate = dataclasses.replace(first, quantity="mu", value=0.5, lower=None, at=FrozenMap())
    model = {"kind": "mlp"}
    document = FrozenMap({"mechanism": {"kind": "group"}, "model": model, **FACTS, **changes.pop("document", {})})
    return factory.audit(
        document=document, findings=(first, rate), conformance=factory.conformance("no-deviation-found"), **changes
    )


def test_the_coverages_of_three_kinds_of_runs_are_those_of_the_page(generator: ModuleType) -> None:
    central = {"deployment": {**FACTS["deployment"], "trust_model": "central"}}
    by = FrozenMap({"by": FrozenMap({"backend": FrozenMap({"distribution": "dpspec"})})})
    useful = factory.verdict("useful", kind="metric", verdict="supported", quantity="accuracy")
    trial = dataclasses.replace(factory.audit().trials[0], recorded=by)
    of_spec = declared(document=central, trials=(trial,), verdicts=(factory.verdict(), useful))
    recorded = []
    for federated in (False, True):
        origin = ExecutedOrigin(
            began="2026-01-02T03:04:05+00:00", versions=FrozenMap({"torch": "2.13.0"}), machine="Linux, cpu",
            dtypes=("float32",), dataset="Visits", records=120, federated=federated,
        )  # fmt: skip
        recording = ExecutedSection(origin=origin)
        recorded.append(declared(recording=recording, evidence=(), trials=(), planned_trials=0))
    found = zip(*(lines(factory.result(audit), audit) for audit in (of_spec, *recorded)), strict=True)
    page = (REFERENCE / "statement.md").read_text("utf-8").partition("## Three kinds of runs")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert [(of_kind[0].key, *(line.coverage for line in of_kind)) for of_kind in found] == rows
