"""Initial weights that an adversary chose: fitted to the rows alone, once, and the same whatever the seed is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpspec.contract import Facts, FrozenMap
from dpspec.models.architectures import Linear
from dpspec.training.canaries import TARGET_LOSS, PretrainedFactory, fit
from dpspec.training.gradients.persample import FlatModel

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, size=90)
X = (RNG.normal(size=(90, 5)) + 8.0 * np.eye(5)[Y]).astype(np.float32)
FACTORY = Linear(FrozenMap({}), Facts(records=90, features=5, classes=3, shape=(5,)))


def test_they_fit_the_records_and_leave_short_gradients() -> None:
    module = FACTORY.build(0)
    before = FlatModel(FACTORY.build(0))
    loss = fit(module, X, Y)
    after = FlatModel(module)
    rows = torch.tensor(X), torch.tensor(Y)
    by_hand = torch.nn.functional.cross_entropy(after.logits(after.initial(), rows[0]), rows[1])
    assert float(by_hand) == pytest.approx(loss, rel=0.2)
    assert float(by_hand) < 2 * TARGET_LOSS
    shorter = after.look(after.initial(), *rows)[0].mean() / before.look(before.initial(), *rows)[0].mean()
    assert float(shorter) < 0.1
    assert module.training


def test_every_module_starts_alike_and_rows_are_read_once() -> None:
    asked: list[int] = []

    def rows() -> tuple[np.ndarray, np.ndarray]:
        asked.append(1)
        return X, Y

    state = torch.random.get_rng_state()
    fitted = PretrainedFactory(FACTORY, rows, lambda: "cpu")
    assert fitted.parameters() == FACTORY.parameters()
    assert not asked
    first, second = fitted.build(1).state_dict(), fitted.build(2).state_dict()
    again = PretrainedFactory(FACTORY, rows, lambda: "cpu").build(3).state_dict()
    assert all(torch.equal(first[name], second[name]) and torch.equal(first[name], again[name]) for name in first)
    assert len(asked) == 2
    assert torch.equal(state, torch.random.get_rng_state())
    other = PretrainedFactory(FACTORY, lambda: (X[1:], Y[1:]), lambda: "cpu").build(1).state_dict()
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_what_cannot_be_fitted_is_said() -> None:
    with pytest.raises(ValueError, match="without records"):
        fit(FACTORY.build(0), X[:0], Y[:0])
    with pytest.raises(ValueError, match="not finite"):
        fit(FACTORY.build(0), np.full_like(X, np.inf), Y)
