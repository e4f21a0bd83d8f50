"""The specs of docs/how-to/mnist.md are valid and their privacy claims proved; no image is needed for either."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "specs" / "mnist"
SPECS = [FOLDER / f"{name}.yaml" for name in ("fashion-mnist-lenet5", "mnist-lenet5", "mnist-transcript")]
Run = Callable[..., subprocess.CompletedProcess[str]]

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
    done = dpspec("validate", *SPECS, "--set", f"data.path={images}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_images_the_message_names_the_file(dpspec: Run, tmp_path: Path) -> None:
    done = dpspec("validate", SPECS[1], "--set", f"data.path={tmp_path / 'nowhere'}")
    assert done.returncode == 3
    words = " ".join((done.stdout + done.stderr).split())
    assert "data-unreadable" in words
    assert "train-images-idx3-ubyte: no such file" in words


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_their_privacy_is_proved(spec: Path, dpspec: Run, tmp_path: Path) -> None:
    for file in SPECS:  # a parent is named relative to its child
        shutil.copy(file, tmp_path)
    (tmp_path / "bounded.yaml").write_text(BOUNDED.format(spec=spec.name), encoding="utf-8")
    done = dpspec("run", "bounded.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROVED        one-record" in done.stdout
