"""Values of decorated functions as rows, and their digests."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import dpspec
from dpspec.contract import DataError, FrozenMap
from dpspec.contract.parts import PARTS
from dpspec.data.function_data import FunctionData

X = np.arange(24, dtype=np.float64).reshape(8, 3)
Y = np.arange(8) % 2


def source(function, tmp_path, *, label=None, **options) -> FunctionData:
    (part,) = getattr(dpspec.dataset("rows", classes=2, label=label)(function), PARTS)
    return FunctionData(part, FrozenMap({"classes": 2, **options}), tmp_path)


def frame(x=X, y=Y):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"outcome": y, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2]})


VALUES = {
    "arrays": lambda: (X, Y),
    "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
    "dataset": lambda: TensorDataset(torch.tensor(X), torch.tensor(Y)),
    "frame": frame,
}


@pytest.mark.parametrize("name", VALUES)
def test_every_form_gives_the_same_rows(tmp_path, name):
    rows = source(lambda: VALUES[name](), tmp_path, label="outcome")
    facts = rows.facts()
    assert (facts.records, facts.shape, facts.features, facts.classes, facts.test_records) == (8, (3,), 3, 2, 0)
    assert facts.digest == source(lambda: (X, Y), tmp_path).facts().digest
    loaded = rows.load()
    assert loaded.train_x.dtype == np.float32
    np.testing.assert_array_equal(loaded.train_x, X)
    np.testing.assert_array_equal(loaded.train_y, Y)


@pytest.mark.parametrize("name", VALUES)
def test_real_targets(tmp_path, name):
    real = Y / 3.0
    forms = {
        "arrays": lambda: (X, real),
        "tensors": lambda: (torch.tensor(X), torch.tensor(real)),
        "dataset": lambda: TensorDataset(torch.tensor(X), torch.tensor(real)),
        "frame": lambda: frame(y=real),
    }
    (part,) = getattr(dpspec.dataset("rows", target="real", label="outcome")(forms[name]), PARTS)
    loaded, facts = (
        read(FunctionData(part, FrozenMap(), tmp_path)) for read in (FunctionData.load, FunctionData.facts)
    )
    assert (facts.classes, facts.real_target, loaded.train_y.dtype) == (1, True, np.float32)
    np.testing.assert_array_equal(loaded.train_y, np.float32(Y / 3.0))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e39])
def test_targets_that_are_not_finite_are_refused(tmp_path, wrong):
    (part,) = getattr(dpspec.dataset("rows", target="real")(lambda: (X, np.where(Y, wrong, 0.5))), PARTS)
    with pytest.raises(DataError, match=r"record 1 is not finite in float32 \(targets\)"):
        FunctionData(part, FrozenMap(), tmp_path).load()


@pytest.mark.parametrize("settings", [{"target": "number"}, {"target": "real", "classes": 2}])
def test_settings_of_targets_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="target must be class or real, and real targets have no classes"):
        dpspec.dataset("rows", **settings)


@pytest.mark.parametrize(
    "value",
    [
        (X[:6], Y[:6], X[6:], Y[6:]),
        tuple(TensorDataset(torch.tensor(X[s]), torch.tensor(Y[s])) for s in (slice(6), slice(6, 8))),
    ],
)
def test_test_records(tmp_path, value):
    facts = source(lambda: value, tmp_path).facts()
    assert (facts.records, facts.test_records) == (6, 2)


def test_common_keys_apply(tmp_path):
    loaded = source(lambda: (X, Y), tmp_path, split={"test": 2}, size=4, radius=1.0).load()
    assert (loaded.train_x.shape, loaded.test_x.shape) == ((4, 3), (2, 3))
    assert np.linalg.norm(loaded.train_x, axis=1).max() <= 1.0


def test_global_generators_are_seeded_and_restored(tmp_path):
    def drawn():
        return np.random.normal(size=(8, 3)) + torch.randn(8, 3).numpy(), Y

    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    facts = source(lambda: drawn(), tmp_path).facts()
    assert source(lambda: drawn(), tmp_path).facts() == facts
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_rows_that_differ_between_calls_are_refused(tmp_path):
    counter = itertools.count()
    rows = source(lambda: (X + next(counter), Y), tmp_path)
    rows.load()
    with pytest.raises(DataError, match="two calls return different rows: draw them with a fixed seed"):
        rows.load()


def fails():
    raise KeyError("no such file")


REFUSED = [
    (lambda: None, "returns a NoneType, not arrays, a Dataset or a data frame"),
    (lambda: X, "returns|x has shape"),
    (lambda: (X, Y, X), r"returns \(ndarray, ndarray, ndarray\); return \(x, y\)"),
    (lambda: (X, Y * 1.5), 'labels must be integers .classes.* target="real"'),
    (lambda: (np.full((8, 3), np.nan), Y), "record 0 is not finite"),
    (lambda: (np.array([["a"] * 3] * 8), Y), "features must be real numbers"),
    (lambda: (X[:, 0], Y), "x has shape .8,.: return"),
    (lambda: (X, Y, X[:, :2], Y), r"records of shape \(2,\), not \(3,\)"),
    (fails, r"fails\(\) fails at .*test_function_data.py:\d+: KeyError"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_other_values_are_refused(tmp_path, function, message):
    with pytest.raises(DataError, match=message):
        source(function, tmp_path).facts()


def test_a_frame_needs_numbers_and_its_label(tmp_path):
    with pytest.raises(DataError, match="no column 'nothing'"):
        source(lambda: frame(), tmp_path, label="nothing").facts()
    with pytest.raises(DataError, match="column 'city' has no numbers"):
        source(lambda: frame().assign(city="Rome"), tmp_path, label="outcome").facts()


def test_the_folder_of_the_spec(tmp_path):
    np.save(tmp_path / "x.npy", X)

    def rows(folder):
        return np.load(folder / "x.npy"), Y

    assert source(rows, tmp_path).facts().records == 8
