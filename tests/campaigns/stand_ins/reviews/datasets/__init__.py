"""``load_dataset`` of invented reviews, with the methods of Hugging Face's datasets that official examples call."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

_WORDS = {
    0: ["dull", "slow", "flat", "weak", "stale", "grey", "loud", "empty", "thin", "sour"],
    1: ["bright", "fresh", "warm", "sharp", "bold", "clear", "deep", "lively", "rich", "fine"],
}
_COMMON = [
    "the",
    "a",
    "film",
    "plot",
    "scene",
    "actor",
    "score",
    "ending",
    "camera",
    "story",
    "was",
    "felt",
    "seemed",
    "of",
    "and",
    "with",
    "in",
    "some",
]
_SIZES = {"train": 800, "test": 200}


class Dataset(torch.utils.data.Dataset):
    """Columns of equal length."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns
        self.shown: Sequence[str] = tuple(columns)
        self.as_tensors = False

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {name: self.columns[name][index] for name in self.shown}
        return {name: torch.tensor(value) for name, value in row.items()} if self.as_tensors else row

    def map(self, function: Callable[[dict[str, list[Any]]], dict[str, list[Any]]], batched: bool) -> "Dataset":
        if not batched:
            raise NotImplementedError("only batched=True")
        return Dataset({**self.columns, **function(self.columns)})

    def set_format(self, type: str, columns: Sequence[str]) -> None:
        self.shown, self.as_tensors = columns, type == "torch"


class DatasetDict(dict[str, Dataset]):
    """Datasets by the name of their split."""

    def map(self, function: Callable[..., Any], batched: bool = False) -> "DatasetDict":
        return DatasetDict({name: part.map(function, batched) for name, part in self.items()})

    def set_format(self, type: str, columns: Sequence[str]) -> None:
        for part in self.values():
            part.set_format(type, columns)


def load_dataset(name: str, **_: object) -> DatasetDict:
    """Invented reviews of 8 to 60 words with their labels; the name is ignored."""
    drawn, parts = random.Random(7), DatasetDict()
    for split, count in _SIZES.items():
        labels = [drawn.randrange(2) for _ in range(count)]
        texts = [" ".join(drawn.choices(_COMMON + _WORDS[label] * 2, k=drawn.randrange(8, 61))) for label in labels]
        parts[split] = Dataset({"text": texts, "label": labels})
    return parts
