"""The code behind a provider: what changes its digest, what does not, and where there is none."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpspec.engine.preparing import trial_keys as sources
from dpspec.engine.preparing.trial_keys import UnknownCodeError, requirements, source_digest

Digest = Callable[..., str]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    forget()


def forget() -> None:
    for cached in (source_digest, requirements, sources._shipped, sources._owners):
        cached.cache_clear()
    sys.path_importer_cache.clear()


def write(folder: Path, name: str, text: str = "") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def installed(folder: Path, name: str, *files: str, version: str = "1.0", requires: str = "") -> None:
    """The metadata of an installed distribution, with what it says it brought."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires.split(",") if each)
    write(info, "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    write(info, "RECORD", "".join(f"{file},,\n" for file in files))
    write(info, "entry_points.txt", f"[dpspec]\nplug = {files[0].partition('/')[0].removesuffix('.py')}\n")


def digest(reference: str = "acme_plug.backend:Trainer", distribution: str = "acme") -> str:
    forget()
    return source_digest(distribution, "plug", reference)


def package(site: Path) -> None:
    for name in ("acme_plug/__init__.py", "acme_plug/backend.py", "acme_plug/deep/noise.py"):
        write(site, name, "x = 1\n")
    write(site, "acme_plug/table.json", "[1.0]")


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        *((name, True) for name in ("__init__.py", "backend.py", "deep/noise.py", "table.json", "new.py")),
        *((name, False) for name in ("__pycache__/backend.cpython-311.pyc", ".backend.py.swp")),
    ],
)
def test_every_file_of_a_package_counts_except_those_that_python_and_editors_write(
    site: Path, changed: str, counts: bool
) -> None:
    package(site)
    before = digest()
    assert digest() == before
    write(site, f"acme_plug/{changed}", "x = 2\n")
    assert (digest() != before) is counts


def test_a_digest_is_that_of_another_place(site: Path, tmp_path: Path) -> None:
    package(site)
    before = digest()
    elsewhere = tmp_path / "elsewhere"
    site.rename(elsewhere)
    sys.path.insert(0, str(elsewhere))
    try:
        assert digest() == before
    finally:
        sys.path.remove(str(elsewhere))


def test_all_that_the_distribution_installed_counts_and_nothing_else(site: Path) -> None:
    write(site, "acme_one.py", "import acme_other, acme_aside\n")
    write(site, "acme_other.py", "x = 1\n")
    write(site, "acme_aside.py", "x = 1\n")
    installed(site, "acme", "acme_one.py", "acme_other.py")
    before = digest("acme_one:Trainer")
    write(site, "acme_aside.py", "x = 2\n")
    assert digest("acme_one:Trainer") == before
    for name in ("acme_other.py", "acme_one.py"):
        write(site, name, "# edited\n")
        after = digest("acme_one:Trainer")
        assert after != before
        before = after


def test_the_module_of_the_entry_point_counts(site: Path) -> None:
    package(site)
    write(site, "acme_entry.py", "x = 1\n")
    installed(site, "acme", "acme_entry.py")
    write(site, "acme-1.0.dist-info/RECORD")  # an editable install lists no files
    before = digest()
    write(site, "acme_entry.py", "x = 2\n")
    assert digest() != before


def test_an_editable_install_counts_where_its_files_are(site: Path, tmp_path: Path) -> None:
    source = tmp_path / "checkout" / "src"
    package(source)
    before_anything = sys.path[:]
    write(site, "acme.pth", f"{source}\n")
    import site as site_module

    try:
        site_module.addsitedir(str(site))
        before = digest()
        write(source, "acme_plug/backend.py", "x = 2\n")
        assert digest() != before
    finally:
        sys.path[:] = before_anything


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_links_are_followed_and_loops_end(site: Path, tmp_path: Path) -> None:
    package(site)
    write(tmp_path, "outside/more.py", "x = 1\n")
    (site / "acme_plug" / "more").symlink_to(tmp_path / "outside")
    (site / "acme_plug" / "again").symlink_to(site / "acme_plug")
    before = digest()
    write(tmp_path, "outside/more.py", "x = 2\n")
    assert digest() != before


def test_what_is_nowhere_is_not_known(site: Path) -> None:
    with pytest.raises(UnknownCodeError, match="found nowhere"):
        digest("acme_nowhere:Trainer")
    with pytest.raises(UnknownCodeError, match="in no file"):
        digest("_thread:Trainer")


def test_code_of_dpspec_is_not_looked_at(site: Path) -> None:
    package(site)
    write(site, "acme_plug/backend.py", "import dpspec\nfrom dpspec_group import theory\n")
    opened: list[str] = []
    original = sources._files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_files", lambda package: opened.append(package) or original(package))
        digest()
        digest("dpspec.training.loop.native:NativeTrainer")
    assert set(opened) == {"acme_plug"}


def test_versions_of_what_it_requires(site: Path) -> None:
    needs = "numpy>=1,pytest>=1,absent-one,extra-one; extra == 'x',not a name!"
    installed(site, "acme", "acme_plug.py", requires=needs)
    forget()
    assert requirements("acme") == {"absent-one": "absent", "pytest": importlib.metadata.version("pytest")}
