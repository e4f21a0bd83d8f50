"""The documentation site builds without a warning and asks nobody for anything; skipped without mkdocs-material."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs dpspec[docs]")
pytest.importorskip("mkdocs", reason="needs dpspec[docs]")

CONFIG = Path(__file__).parents[2] / "docs" / "site" / "mkdocs.yml"

#: What a browser fetches without being asked to.
_FETCHED = re.compile(r"""<(?:script|link|img|iframe|source|video|audio)\b[^>]*?\b(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", CONFIG]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--site-dir", folder], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    docs = CONFIG.parents[1]
    for page in docs.rglob("*.md"):
        assert (site / page.relative_to(docs).with_suffix(".html")).exists()
    assert "Is the privacy you claim true?" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "specs" / "quickstart.yaml").exists()


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not _FETCHED.search(page.read_text(encoding="utf-8")), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style.name
