"""Every number on the page about the papers is in the test that its row names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "papers.md"
_NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?|\d+e-?\d+")
_TEST = re.compile(r"`(test_\w+)`")


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[-1] != "test"]


def digits(text: str) -> set[str]:
    return {repr(float(found)) for found in _NUMBER.findall(text.replace("_", ""))}


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
    known = digits("".join(sources[name] for name in names) + printed)
    assert digits(row[2]) <= known, sorted(digits(row[2]) - known)
