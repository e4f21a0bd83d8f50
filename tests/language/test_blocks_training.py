"""Optimizers and schedules of the training block: what they accept, fill in, and refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpspec.contract import thaw
from dpspec.language.load import Loaded

Load = Callable[..., Loaded]
Problems = Callable[..., list[tuple[str, str, str | None]]]

LINE = "training: {backend: native, learning_rate: 1}"


def test_without_them_nothing_is_filled_in(load: Load, valid: str) -> None:
    """What a trial may read decides its key: a default would train every stored trial again."""
    (spec,) = load(valid).specs
    assert not {"optimizer", "schedule"} & set(spec.training.options)


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("optimizer: {kind: sgd}", {"optimizer": {"kind": "sgd", "weight_decay": 0}}),
        (
            "optimizer: {kind: momentum, nesterov: true}",
            {"optimizer": {"kind": "momentum", "nesterov": True, "weight_decay": 0}},
        ),
        ("optimizer: {kind: adam, beta1: 0.8}", {"optimizer": {"kind": "adam", "beta1": 0.8, "weight_decay": 0}}),
        (
            "schedule: {kind: step, every: 5, factor: 0.5}",
            {"schedule": {"kind": "step", "every": 5, "factor": 0.5, "warmup": 0}},
        ),
        ("schedule: {kind: cosine, final: 0.1}", {"schedule": {"kind": "cosine", "final": 0.1, "warmup": 0}}),
    ],
)
def test_accepted(load: Load, valid: str, given: str, filled: dict[str, object]) -> None:
    (spec,) = load(valid.replace(LINE, f"training: {{{given}}}")).specs
    assert {key: thaw(spec.training[key]) for key in filled} == filled


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("optimizer: {kind: adam, momentum: 0.9}", "conflicting-key", "'momentum' is not allowed with kind adam"),
        ("optimizer: {kind: momentum, momentum: 1}", "out-of-range", "momentum must be below 1, got 1"),
        ("optimizer: {kind: adagrad}", "bad-choice", "'adagrad'"),
        ("optimizer: {weight_decay: 0.1}", "missing-key", "missing key 'kind' in training.optimizer"),
        ("schedule: {kind: step, every: 3}", "missing-key", "missing key 'factor' in training.schedule"),
        ("schedule: {kind: constant, warmup: -1}", "out-of-range", "warmup must be at least 0, got -1"),
    ],
)
def test_refused(problems: Problems, given: str, code: str, words: str) -> None:
    found = problems(LINE, f"training: {{{given}}}")
    assert any(found_code == code and words in message for found_code, message, _ in found), found
