"""Every number on the page about the papers is in the test that its row names."""

import functools
import re
from pathlib import Path

import pytest

from dpspec.contract.rules import LARGE_DELTA
from dpspec.engine.preparing.prepare import check
from dpspec.language.load import load_specs
from dpspec.registry.loader import load_catalog

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "papers.md"
_NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?|\d+e-?\d+")
_TEST = re.compile(r"`(test_\w+)`")


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[-1] != "test"]


@functools.cache  # many rows name the same files
def digits(text: str) -> frozenset[str]:
    return frozenset(repr(float(found)) for found in _NUMBER.findall(text.replace("_", "")))


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^ *def (test_\w+)", text, re.MULTILINE):
            found[name] = found.get(name, "") + text
    return found


@pytest.fixture(scope="module")
def printed() -> str:
    files = [*(ROOT / "specs" / "papers").glob("*.yaml"), *(ROOT / "tests" / "support").glob("*.py")]
    return "".join(path.read_text(encoding="utf-8") for path in files)


def test_the_page_has_its_tables() -> None:
    assert len(rows()) > 35


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[-1].strip("`"))
def test_a_row_s_numbers_are_those_of_its_test(row: list[str], sources: dict[str, str], printed: str) -> None:
    names = _TEST.findall(row[-1])
    assert names, row
    assert all(name in sources for name in names), row[-1]
    known = digits(printed).union(*(digits(sources[name]) for name in names))
    assert digits(row[2]) <= known, sorted(digits(row[2]) - known)


def test_the_page_names_the_spec_of_each_figure() -> None:
    commands = PAGE.read_text(encoding="utf-8").partition("## Figures and tables")[2].partition("\n## ")[0]
    shipped = {path.stem for path in (ROOT / "specs" / "papers").glob("*.yaml")}
    assert set(re.findall(r"`([\w-]+)` \(\d", commands)) == shipped


@pytest.mark.ci
def test_no_claim_of_a_figure_fails_because_of_its_delta() -> None:
    """A delta of at least 1 / records is an open caution, and the run ends with 1, unless the claim accepts it."""
    catalog = load_catalog()
    warned = 0
    for path in sorted((ROOT / "specs" / "papers").glob("*.yaml")):
        for spec in load_specs([path], catalog).specs:
            places = [d.path for d in check(spec, catalog) if d.code == LARGE_DELTA]
            warned += len(places)
            accepted = [LARGE_DELTA in spec.claims[int(place[1])].accept for place in places]
            assert all(accepted), (path.name, places)
    assert warned
