"""A folder of images: the pixels are those of the files, and each fault is named with its file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpspec.contract import DataError, FrozenMap
from dpspec.data.image_folder import ImageFolder

Image = pytest.importorskip("PIL.Image")

CHOSEN = {"path": "train", "classes": ("cat", "dog"), "image_size": (4, 6), "channels": 1}


def save(file: Path, values: Any, mode: str = "L") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype=np.uint8), mode).save(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("cat", "dog")):
        for index in range(2 + label):
            save(tmp_path / "train" / name / f"{index}.png", np.full((4, 6), 100 * label + index))
    return tmp_path


def source(folder: Path, **changes: Any) -> ImageFolder:
    return ImageFolder(FrozenMap({**CHOSEN, **changes}), folder)


def test_pixels_and_labels_are_those_of_the_files(folder: Path) -> None:
    facts, loaded = source(folder).describe(), source(folder).read()
    assert (facts.records, tuple(facts.shape), facts.classes) == (5, (1, 4, 6), 2)
    assert loaded.train_y.tolist() == [0, 0, 1, 1, 1]
    expected = np.float32([0, 1, 100, 101, 102]) / np.float32(255)
    assert np.array_equal(np.asarray(loaded.train_x)[:, 0, 0, 0], expected)


def test_colors_come_first_and_gray_images_have_three_equal_ones(folder: Path) -> None:
    color = np.zeros((4, 6, 3))
    color[..., 1] = 255
    save(folder / "train" / "cat" / "0.png", color, "RGB")
    x = np.asarray(source(folder, channels=3).read().train_x)
    assert x.shape == (5, 3, 4, 6)
    assert x[0, :, 0, 0].tolist() == [0.0, 1.0, 0.0]
    assert len(set(x[1, :, 0, 0].tolist())) == 1


def test_other_pixels_or_labels_are_other_data(folder: Path) -> None:
    before = source(folder).describe().digest
    assert source(folder).describe().digest == before
    save(folder / "train" / "cat" / "0.png", np.full((4, 6), 9))
    changed = source(folder).describe().digest
    (folder / "train" / "cat" / "0.png").rename(folder / "train" / "dog" / "9.png")
    assert len({before, changed, source(folder).describe().digest}) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda train: save(train / "cat" / "big.png", np.zeros((5, 6))), r"big\.png: 5 x 6 pixels, and image_size is"),
        (lambda train: (train / "cat" / "note.txt").write_text("x"), r"note\.txt: not an image"),
        (lambda train: (train / "cat" / "bad.png").write_bytes(b"\x89PNG broken"), r"bad\.png: not a readable image"),
        (lambda train: (train / "bird").mkdir(), r"bird: a folder without a class"),
        (lambda train: (train / "loose.png").write_bytes(b""), r"loose\.png: a file next to the class folders"),
        (lambda train: (train / "dog").rename(train / "dogs"), r"dogs: a folder without a class"),
        (lambda train: train.rename(train.with_name("other")), r"train: does not exist"),
    ],
)
def test_each_fault_is_named_with_its_file(folder: Path, fault: Any, message: str) -> None:
    fault(folder / "train")
    with pytest.raises(DataError, match=message):
        source(folder).read()


def test_test_images_have_the_folders_of_the_classes(folder: Path) -> None:
    save(folder / "test" / "cat" / "0.png", np.zeros((4, 6)))
    (folder / "test" / "dog").mkdir()
    assert source(folder, test_path="test").describe().test_records == 1
    (folder / "test" / "dog").rmdir()
    with pytest.raises(DataError, match="no folder for the class 'dog'"):
        source(folder, test_path="test").describe()
