"""Every link and picture inside the repository leads somewhere, and the site's contents name every page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "specs").rglob("*.md")),
    *sorted((ROOT / "plugins").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("README.md")),
]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    yield from (link for link in _LINK.findall(text) if not link.startswith(("http://", "https://", "mailto:")))


def anchors(page: Path) -> set[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in _HEADING.findall(text))
    return {re.sub(r"[\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_pictures_are_small_and_described() -> None:
    for page in PAGES:
        for words, name in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text(encoding="utf-8"), re.DOTALL):
            assert len(words) > 10, f"{page.name}: {name} needs words for those who cannot see it"
            assert (page.parent / name).stat().st_size < 150_000, name


def test_every_picture_is_shown() -> None:
    shown = {Path(link).name for page in PAGES for link in links(page)}
    assert {path.name for path in (DOCS / "pictures").iterdir()} <= shown


def test_the_contents_name_every_page() -> None:
    def named(node: object) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict | list):
            for inner in node.values() if isinstance(node, dict) else node:
                yield from named(inner)

    contents = yaml.safe_load((DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(named(contents)) == sorted({*there, "index.md"})


def test_the_numerics_lead_to_every_proof() -> None:
    page = DOCS / "explanation" / "numerics.md"
    linked = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
    assert set((DOCS / "explanation" / "proofs").glob("*.md")) <= linked
