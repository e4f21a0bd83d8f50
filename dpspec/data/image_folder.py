"""Data kind ``images``: a folder of images with one folder for each class, read by pillow."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Json
from dpspec.contract.frozen import digest
from dpspec.data.source import Halves, check_count, path, schema, sha256
from dpspec.text import closest, did_you_mean, listed, quoted

if TYPE_CHECKING:
    from dpspec.data.source import Rows

#: The suffixes of images; other files in a class folder are errors, so that no record is omitted silently.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")

#: Pillow's modes by the number of channels.
_MODES = {1: "L", 3: "RGB"}

IMAGES = Dataset(
    kind="images",
    summary="A folder of images with one folder for each class, pixels in [0, 1] (needs pillow).",
    schema=schema(
        *("path", "classes", "image_size"),
        path=path("The folder of training images: path/CLASS/*.png, *.jpg, ..."),
        test_path=path("A folder of test images with the same folders of classes."),
        classes={
            "type": "array",
            "minItems": 2,
            "uniqueItems": True,
            "items": {"type": "string", "minLength": 1},
            "description": "The names of the class folders, in the order of the labels.",
        },
        image_size={
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {"type": "integer", "minimum": 1, "maximum": 4096},
            "description": "Height and width of every image in pixels; an image of another size is an error.",
        },
        channels={
            "enum": [1, 3],
            "default": 3,
            "description": "1 for gray levels, 3 for red, green and blue.",
        },
    ),
    source="dpspec.data.image_folder:ImageFolder",
)


class ImageFolder(Halves):
    """Images of shape (channels, height, width): bytes divided by the public constant 255."""

    def halves(self) -> list[Path]:
        return [self._folder(key) for key in ("path", "test_path") if key in self.options]

    def shape(self, half: Path) -> tuple[int, ...]:
        return (len(self._files(half)), self._channels, *self._size)

    def rows(self, half: Path) -> Rows:
        import numpy as np

        files = self._files(half)
        shape = (len(files), self._channels, *self._size)
        check_count(half, shape)
        x, y = np.empty(shape, dtype=np.float32), np.empty(len(files), dtype=np.int64)
        for index, (file, label) in enumerate(files):
            x[index], y[index] = self._pixels(file), label
        return x, y

    def key(self, halves: list[Path]) -> dict[str, Json]:
        contents = [[[label, sha256(file)] for file, label in self._files(half)] for half in halves]
        return {"kind": "images", "files": digest(contents), "size": list(self._size), "channels": self._channels}

    @property
    def _channels(self) -> int:
        return int(self.options.get("channels", 3))

    @property
    def _size(self) -> tuple[int, int]:
        height, width = self.options["image_size"]
        return int(height), int(width)

    def _folder(self, key: str) -> Path:
        folder = self.directory / str(self.options[key])
        if not folder.is_dir():
            raise DataError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'does not exist'}", key)
        return folder

    def _files(self, half: Path) -> list[tuple[Path, int]]:
        """Each image with its label, by class and name."""
        classes = [str(name) for name in self.options["classes"]]
        names = sorted(entry.name for entry in half.iterdir() if not entry.name.startswith("."))
        for name in names:
            if name not in classes:
                kind = "a folder without a class" if (half / name).is_dir() else "a file next to the class folders"
                raise DataError(f"{half / name}: {kind}; classes: {listed(classes)}", "classes")
        files = []
        for label, name in enumerate(classes):
            if name not in names:
                hint = did_you_mean(closest(name, names))
                raise DataError(f"{half}: no folder for the class {quoted(name)}{hint}", "classes")
            for file in sorted((half / name).iterdir()):
                if file.name.startswith("."):
                    continue
                if file.suffix.lower() not in SUFFIXES or not file.is_file():
                    raise DataError(f"{file}: not an image ({', '.join(SUFFIXES)}); remove it, or convert it", "path")
                files.append((file, label))
        if not files:
            raise DataError(f"{half}: no image", "path")
        return files

    def _pixels(self, file: Path) -> Any:
        """Values in [0, 1] of shape (channels, height, width)."""
        import numpy as np

        try:
            from PIL import Image
        except ImportError as error:
            raise DataError(
                f"data of kind 'images' needs pillow, which cannot be imported ({error}); "
                "install it with: pip install 'dpspec[images]'"
            ) from None
        height, width = self._size
        try:
            with Image.open(file) as image:
                if image.size != (width, height):  # before the pixels are decoded, which may be very many
                    raise DataError(
                        f"{file}: {image.size[1]} x {image.size[0]} pixels, and image_size is {height} x {width} "
                        "(height x width): resize the images before the audit",
                        "image_size",
                    )
                values = np.asarray(image.convert(_MODES[self._channels]), dtype=np.float32)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{file}: not a readable image: {error}", "path") from error
        if values.size != prod((height, width, self._channels)):
            raise DataError(f"{file}: {values.size} values instead of {height} x {width} x {self._channels}", "path")
        pixels = values.reshape(height, width, self._channels).transpose(2, 0, 1)
        return pixels / np.float32(255)
