"""Shipped specs from the command line: the quickstart, images, and other training loops."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "specs"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.ci
def test_the_readmes_first_command_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """In an interpreter of its own, which nothing of the tests has changed."""
    command = [sys.executable, "-m", "dpspec", "run", str(SPECS / "quickstart.yaml"), "--report", "html=report.html"]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("$ dpspec run specs/quickstart.yaml")[2].partition("```")[0].splitlines()[1:]
    assert shown[0] == "Both privacy claims are proved."
    assert done.stdout.splitlines()[: len(shown)] == shown
    assert 10_000 < (tmp_path / "report.html").stat().st_size < 100_000


def test_the_quickstart_gives_verdicts_with_upper_and_lower_bounds(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", SPECS / "quickstart.yaml", "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["audits"]
    verdicts = {v["claim"]: v for v in audit["verdicts"]}
    assert {claim: v["verdict"] for claim, v in verdicts.items()} == {
        "one-record": "proved",
        "family": "proved",
        "too-good": "refuted",
        "useful": "supported",
    }
    for claim in ("one-record", "family"):
        assert 0.0 < verdicts[claim]["lower"] < verdicts[claim]["upper"] < verdicts[claim]["claimed"]
    assert audit["conformance"]["status"] == "no-deviation-found"
    assert len(audit["checks"]) <= 20
    for check in audit["checks"]:
        exact = check["test"].endswith(", exact")
        assert exact or check["detectable"] < 1.2, check  # batch sizes with twice the variance

    again = dpspec("verify", "result.json")
    assert again.returncode == 0, again.stdout + again.stderr
    assert dpspec("diff", "result.json", "result.json").returncode == 0

    data = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    data["audits"][0]["verdicts"][0]["upper"] = 1.0
    (tmp_path / "edited.json").write_text(json.dumps(data), encoding="utf-8")
    edited = dpspec("verify", "edited.json")
    assert edited.returncode == 1
    assert "upper" in edited.stdout + edited.stderr


MNIST = [SPECS / "mnist" / f"{name}.yaml" for name in ("fashion-mnist-lenet5", "mnist-lenet5", "mnist-transcript")]

#: A child that knows the public facts alone and trains nothing.
BOUNDED = """\
dpspec: 1
extends: {spec}
data: {{kind: declared, records: 60000, features: [1, 28, 28], path: null, images: null, labels: null,
  test_images: null, test_labels: null, standardise: null, public: null}}
claims:
  - {{id: one-record, kind: approx-dp, epsilon: 3.0, delta: 1e-5}}
audit: null
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four small files of noise under the names that the specs give."""
    folder, random = tmp_path / "images", np.random.default_rng(0)
    folder.mkdir()
    for prefix, count in (("train", 40), ("t10k", 20)):
        for name, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            values = random.integers(0, 256 if len(shape) == 3 else 10, shape).astype(np.uint8)
            head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            (folder / f"{prefix}-{name}-ubyte").write_bytes(head + values.tobytes())
    return folder


def test_with_images_they_are_valid(dpspec: Run, images: Path) -> None:
    done = dpspec("validate", *MNIST, "--set", f"data.path={images}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_images_the_message_names_the_file(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("validate", MNIST[1], "--set", f"data.path={tmp_path / 'nowhere'}")
    assert done.returncode == 3
    words = " ".join((done.stdout + done.stderr).split())
    assert "data-unreadable" in words
    assert "train-images-idx3-ubyte: no such file" in words


@pytest.mark.parametrize("spec", MNIST, ids=lambda path: path.stem)
def test_their_privacy_is_proved(spec: Path, dpspec: Run, tmp_path: Path) -> None:
    for file in MNIST:  # a parent is named relative to its child
        shutil.copy(file, tmp_path)
    (tmp_path / "bounded.yaml").write_text(BOUNDED.format(spec=spec.name), encoding="utf-8")
    done = dpspec("run", "bounded.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROVED        one-record" in done.stdout


def statuses(tmp_path: Path) -> dict[str, str]:
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    return {audit["name"]: audit["conformance"]["status"] for audit in result["audits"]}


@pytest.mark.ci
def test_a_team_audits_its_own_loop(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("run", ROOT / "tests" / "plugins" / "dpspec_own_loop" / "audit.yaml", "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(tmp_path) == {"own-loop": "no-deviation-found"}


@pytest.mark.slow
def test_opacus_as_its_users_call_it(dpspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    done = dpspec("run", *sorted((SPECS / "opacus").glob("*.yaml")), "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = statuses(tmp_path)
    conform = {"opacus-declared-rate", "opacus-declared-shuffled", "opacus-public-divisor"}
    assert {name for name, status in found.items() if status == "no-deviation-found"} == conform
    assert {name for name, status in found.items() if status == "deviates"} == set(found) - conform
    assert len(found) == 6


def test_without_opacus_the_backend_says_what_to_install(dpspec, environment, tmp_path):
    (tmp_path / "site" / "opacus.py").write_text("raise ModuleNotFoundError('opacus')\n", encoding="utf-8")
    done = dpspec("run", SPECS / "opacus" / "as-a-user.yaml")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "pip install 'dpspec[opacus]'" in done.stderr
