"""A release is refused before anything is built where its tag, its code and its CHANGELOG do not agree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpspec.version import VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of the repository as the checks read, and no way to build anything."""
    folder = tmp_path / "checkout"
    for name in (".ci/release", "pyproject.toml", "CHANGELOG.md", "dpspec/version.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def refused(checkout: Path, version: str, dist: Path) -> str:
    """What the script says where it ends with 1."""
    command = ["bash", str(checkout / ".ci" / "release"), version, str(dist)]
    environment = {**os.environ, "PYTHON": sys.executable}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert not list(dist.glob("dpspec-*"))
    return ended.stderr


def test_a_tag_of_another_version(checkout: Path, tmp_path: Path) -> None:
    assert f"pyproject.toml says {VERSION}" in refused(checkout, "v9.9.9", tmp_path / "dist")


def test_code_of_another_version(checkout: Path, tmp_path: Path) -> None:
    (checkout / "dpspec" / "version.py").write_text('VERSION = "0.0.1"\n')
    assert "version.py says another version" in refused(checkout, f"v{VERSION}", tmp_path / "dist")


def test_a_version_that_the_changelog_does_not_have(checkout: Path, tmp_path: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert f"no section [{VERSION}]: rename [Unreleased]" in refused(checkout, VERSION, tmp_path / "dist")


def test_files_of_another_release_beside_it(checkout: Path, tmp_path: Path) -> None:
    (checkout / "CHANGELOG.md").write_text(f"## [{VERSION}]\n")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "other.whl").touch()
    assert "must be empty" in refused(checkout, VERSION, tmp_path / "dist")


def test_nothing_is_published_that_was_not_tested_and_built() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert jobs["build"]["needs"] == "test"
    assert {jobs[name]["needs"] for name in ("attach", "publish")} == {"build"}
    assert jobs["publish"]["environment"] == "release"
    assert "contents" not in jobs["publish"]["permissions"]
    said = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert 'bash .ci/release "$GITHUB_REF_NAME" dist' in said
    assert not any("${{" in line for line in said)  # a tag's name is text, never a part of a script
