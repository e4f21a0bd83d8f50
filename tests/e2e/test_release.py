"""A release is refused before anything is built where its tag, its code and its CHANGELOG do not agree."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dpspec.version import VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of the repository as the checks read, and no way to build anything."""
    folder = tmp_path / "checkout"
    names = (".ci/release", "pyproject.toml", "packaging/core/pyproject.toml", "CHANGELOG.md", "CITATION.cff")
    for name in (*names, "dpspec/version.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("version", "edits", "beside", "says"),
    [
        ("v9.9.9", {}, "", f"pyproject.toml says {VERSION}"),
        (f"v{VERSION}", {"dpspec/version.py": 'VERSION = "0.0.1"\n'}, "", "version.py says another version"),
        (VERSION, {"CHANGELOG.md": "## [Unreleased]\n"}, "", f"no section [{VERSION}]: rename [Unreleased]"),
        (VERSION, {"CHANGELOG.md": f"## [{VERSION}]\n"}, "other.whl", "must be empty"),
    ],
)
def test_a_release_that_does_not_agree_is_refused(checkout, tmp_path, version, edits, beside, says):
    dist = tmp_path / "dist"
    for name, text in edits.items():
        (checkout / name).write_text(text)
    if beside:
        dist.mkdir()
        (dist / beside).touch()
    command = ["bash", str(checkout / ".ci" / "release"), version, str(dist)]
    environment = {**os.environ, "PYTHON": sys.executable}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert says in ended.stderr
    assert not list(dist.glob("dpspec-*"))


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


def test_workflows_test_every_classified_python_and_pin_actions_by_digest() -> None:
    """The digest of an action is fixed; a tag can be moved to other code that runs with the secrets of a release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    classified = [text.rpartition(" ")[2] for text in project["classifiers"] if text.startswith(prefix)]
    for name, job in (("ci.yml", "check"), ("release.yml", "test")):
        jobs = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())["jobs"]
        assert jobs[job]["strategy"]["matrix"]["python"] == classified
        used = [step["uses"] for steps in jobs.values() for step in steps["steps"] if "uses" in step]
        assert used
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
