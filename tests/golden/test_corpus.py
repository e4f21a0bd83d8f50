"""The keys of trials are frozen, so that stores of earlier versions are found; the comparison sees what differs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
FROZEN = json.loads((HERE / "keys.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def corpus() -> ModuleType:
    found = importlib.util.spec_from_file_location("golden_corpus", HERE / "corpus.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(FROZEN))
def test_trials_keep_their_keys(corpus: ModuleType, path: str) -> None:
    why = "stores of earlier versions are lost: only a new trial_revision may do that, and the CHANGELOG says so"
    assert corpus.trial_keys(corpus.ROOT / path) == FROZEN[path], why


def test_every_spec_that_trains_is_frozen(corpus: ModuleType) -> None:
    trained = {str(path) for path in corpus.frozen_specs() if "\naudit:" in (corpus.ROOT / path).read_text()}
    assert trained <= set(FROZEN)


RESULT = {"a": [{"epsilon": 2.5, "name": "x"}, 1], "b": {"c": None}}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (RESULT, []),
        ({**RESULT, "new": {}}, []),
        ({**RESULT, "new": 3}, ["new: null -> 3"]),
        ({**RESULT, "a": [{"epsilon": 2.5 * (1 + 1e-13), "name": "x"}, 1]}, []),
        ({**RESULT, "a": [{"epsilon": 2.5 * (1 + 1e-11), "name": "x"}, 1]}, ["a[0].epsilon: 2.5 -> 2.500000000025"]),
        ({**RESULT, "a": [{"epsilon": 2.5, "name": "y"}]}, ["a: 2 -> 1 items", 'a[0].name: "x" -> "y"']),
        ({"a": RESULT["a"]}, ['b: {"c": null} -> null']),
    ],
)
def test_the_comparison_sees_every_difference(corpus: ModuleType, now: Any, told: list[str]) -> None:
    assert list(corpus.differences(RESULT, now)) == told
