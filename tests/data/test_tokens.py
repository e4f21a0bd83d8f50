"""Texts as tokens: what is read is what stands in the file, padded; everything else is an error at its line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.contract import DataError, DataSource, FrozenMap
from dpspec.data.tokens import SYNTHETIC, TOKENS
from dpspec.data.tokens import Tokens as Source

Make = Callable[..., DataSource]

OPTIONS: dict[str, Any] = {"vocabulary": 9, "length": 4, "classes": 3}

TEXTS = [([1, 2, 8], 0), ([], 2), ([3, 3, 3, 3], 1), ([0, 5], 0)]


def written(path: Path, texts: Any = TEXTS) -> Path:
    path.write_text("".join(json.dumps({"tokens": tokens, "label": label}) + "\n" for tokens, label in texts))
    return path


def tokens(path: Path, **options: Any) -> Source:
    return Source(FrozenMap({**OPTIONS, "path": path.name, **options}), path.parent)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 8), max_size=6), st.integers(0, 2)), min_size=1, max_size=9),
    st.booleans(),
)
def test_any_texts_come_back(tmp_path_factory: Any, texts: list[tuple[list[int], int]], blank: bool) -> None:
    path = written(tmp_path_factory.mktemp("texts") / "texts.jsonl", texts)
    if blank:
        path.write_text(path.read_text().replace("\n", "\n\n \n"))
    source = tokens(path, truncate=True)
    facts, rows = source.facts(), source.load()
    assert (facts.records, facts.shape, facts.classes, facts.vocabulary) == (len(texts), (4,), 3, 9)
    assert (rows.train_x.dtype, len(rows.test_x)) == (np.float32, 0)
    assert rows.train_x.tolist() == [(ids + [0] * 4)[:4] for ids, _ in texts]
    assert rows.train_y.tolist() == [label for _, label in texts]


def test_whatever_decides_the_rows_decides_the_digest(tmp_path: Path) -> None:
    path = written(tmp_path / "texts.jsonl")
    same = written(tmp_path / "again.jsonl")
    options: list[dict[str, Any]] = [{}, {"vocabulary": 10}, {"length": 5}, {"truncate": True}, {"size": 2}]
    digests = [tokens(path, **more).facts().digest for more in options]
    assert len(set(digests)) == len(options)
    assert tokens(same).facts().digest == digests[0]
    written(path, TEXTS[::-1])
    assert tokens(path).facts().digest != digests[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"tokens": [1], "label": 0, "text": "a"}', "must be"),
        ('{"tokens": [9], "label": 0}', "tokens must be a list of integers in 0..8"),
        ('{"tokens": [true], "label": 0}', "tokens must be a list of integers in 0..8"),
        ('{"tokens": [1], "label": 3}', "the label must be an integer in 0..2"),
        ('{"tokens": [1, 1, 1, 1, 1], "label": 0}', "5 tokens, but length is 4; raise it or set truncate"),
        ('{"tokens": [], "label": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_the_first_line_that_cannot_be_used_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "texts.jsonl")
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(DataError, match=re.escape(f"texts.jsonl:6: {said}")):
        tokens(path).load()


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "long.jsonl").write_text(" " * (2**20 + 2))
    for name, said in (
        ("texts.jsonl", "not UTF-8"),
        ("blank.jsonl", "is empty"),
        ("long.jsonl", "is longer than"),
        ("absent.jsonl", "no such file"),
    ):
        with pytest.raises(DataError, match=said):
            tokens(tmp_path / name).facts()


def test_what_scales_features_is_no_key() -> None:
    for dataset, own in ((TOKENS, {**OPTIONS, "path": "a.jsonl"}), (SYNTHETIC, {})):
        jsonschema.validate({**own, "split": {"test": 0.5}, "size": 1}, dict(dataset.schema))
        for scaling in ({"standardise": {"mean": 1.0}}, {"radius": 1.0}):
            with pytest.raises(jsonschema.ValidationError, match="Additional properties"):
                jsonschema.validate({**own, **scaling}, dict(dataset.schema))


def test_synthetic_texts(source: Make) -> None:
    options: dict[str, Any] = {"records": 500, "vocabulary": 20, "length": 7, "classes": 3, "noise": 0.0}
    made = source("synthetic-tokens", **options)
    facts, rows = made.facts(), made.load()
    assert (facts.records, facts.shape, facts.vocabulary) == (500, (7,), 20)
    x, y = rows.train_x.astype(int), rows.train_y
    lengths = (x != 0).sum(1)
    assert set(lengths) == {4, 5, 6, 7}
    assert all((row[:n] > 0).all() and not row[n:].any() for row, n in zip(x, lengths, strict=True))
    assert x.max() == 19
    assert all((row[:n] % 3 == label).all() for row, n, label in zip(x, lengths, y, strict=True))
    assert np.array_equal(x, source("synthetic-tokens", **options).load().train_x)
    with pytest.raises(DataError, match="vocabulary must be above 9, got 9") as caught:
        source("synthetic-tokens", vocabulary=9, classes=9).facts()
    assert caught.value.key == "vocabulary"
    assert not np.array_equal(x, source("synthetic-tokens", **options, seed=1).load().train_x)


def test_noise_is_the_share_of_any_token(source: Make) -> None:
    """Of 8000 tokens or more, that are another class's with probability noise (1 - 1/2): within five deviations."""
    rows = source("synthetic-tokens", records=1000, vocabulary=41, length=16, classes=2, noise=0.4).load()
    x, y = rows.train_x.astype(int), rows.train_y[:, None]
    real = x != 0
    strange = ((x % 2 != y) & real).sum() / real.sum()
    assert strange == pytest.approx(0.2, abs=5 * (0.16 / real.sum()) ** 0.5)
