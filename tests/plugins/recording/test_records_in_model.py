"""Models that hold records of their dataset, and honest ones."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec_recording.observers.sensitivity.records_in_model import HeldRecords, RecordsInModel, rows_in

X = torch.randn(60, 8, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
PUBLIC = torch.randn(60, 8, generator=torch.Generator().manual_seed(2))
RUN = RuleRun(own_loop=False, steps=10, delta=1e-5)


class Model(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.out = nn.Linear(8, 2)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def with_buffer(value: Tensor) -> nn.Module:
    model = Model()
    model.register_buffer("nodes", value)
    return model


def embedded(value: Tensor) -> nn.Module:
    return Model(table=nn.Embedding.from_pretrained(value))


HOLDING = {
    "buffer nodes holds 60 rows": lambda: with_buffer(X.clone()),
    "buffer nodes holds 10 rows": lambda: with_buffer(X[20:30].reshape(2, 5, 8)),
    "buffer nodes holds one precise copy": lambda: with_buffer(X.double()),
    "buffer nodes holds a transposed copy": lambda: with_buffer(X.T.contiguous()),
    "attribute nodes": lambda: Model(nodes=X),
    "attribute bank": lambda: Model(bank=[*X[:5]]),
    "attribute array": lambda: Model(array=X.numpy()),
    "parameter prototypes holds 4 rows": lambda: Model(prototypes=nn.Parameter(X[:4].clone())),
    "parameter table.weight": lambda: embedded(X.clone()),
    "parameter center holds 1 row": lambda: Model(center=nn.Parameter(X[7].clone())),
}
HONEST = {
    "no state": Model,
    "a public buffer": lambda: with_buffer(PUBLIC),
    "its mean": lambda: with_buffer(X.mean(0)),
    "random prototypes": lambda: Model(prototypes=nn.Parameter(torch.randn(4, 8))),
    "other attributes": lambda: Model(names=["a"], sizes=(8, 2), table={"x": 1.0}, nothing=None),
    "a public table": lambda: embedded(PUBLIC),
}


def facts(model: nn.Module, dataset: Any = None) -> HeldRecords:
    rule = RecordsInModel()
    dataset = TensorDataset(X, Y) if dataset is None else dataset
    rule.start(RuleSetup(model=model, loader=DataLoader(dataset)))
    model(X[:5])
    rule.after_step(RuleStep(number=1, drawn=None, norms=None, clip_norm=1.0))
    rule.stop()
    return rule.facts()


@pytest.mark.parametrize("text", HOLDING)
def test_tensors_of_the_model_that_hold_records_are_named(text: str) -> None:
    caution = RecordsInModel.caution(facts(HOLDING[text]()), RUN)
    name = " ".join(text.split()[:5] if text[-4:] in ("rows", " row") else text.split()[:2])
    assert caution.lower().startswith(name)
    assert "of the dataset" in caution


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_get_no_caution(name: str) -> None:
    assert facts(HONEST[name]()).rows_by_tensor == {}


class Computed(Dataset[Any]):
    """A dataset without tensors."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def test_datasets_outside_of_memory_are_compared_by_the_first_inputs() -> None:
    assert facts(Model(nodes=X), Computed()).rows_by_tensor == {"attribute nodes": 5}
    assert facts(Model(nodes=PUBLIC), Computed()).rows_by_tensor == {}


def test_only_the_records_of_the_loader_count() -> None:
    data = TensorDataset(X, Y)
    assert facts(Model(nodes=X[:20]), Subset(data, range(20))).rows_by_tensor
    assert not facts(Model(nodes=X[40:]), Subset(data, range(20))).rows_by_tensor


def test_a_buffer_that_gets_records_during_the_training_is_named() -> None:
    model, rule = with_buffer(torch.zeros(5, 8)), RecordsInModel()
    rule.start(RuleSetup(model=model, loader=DataLoader(TensorDataset(X, Y))))
    model.nodes.copy_(X[10:15])
    rule.stop()
    assert rule.facts().rows_by_tensor == {"buffer nodes": 5}


def test_rows_of_few_values_may_be_equal_by_chance() -> None:
    flags = torch.eye(8)[Y]
    assert rows_in(flags[:4], flags) == 0
    numbers = torch.arange(6).repeat(4, 1)
    assert rows_in(numbers, numbers) == 0
    tokens = torch.arange(12).repeat(4, 1)
    assert rows_in(tokens[:2], tokens) == 2


@pytest.mark.parametrize(("nodes", "held"), [(X, {"attribute nodes": 5}), (PUBLIC, {})])
def test_the_first_inputs_of_a_loop_by_functional_calls_are_read(nodes: Tensor, held: dict[str, int]) -> None:
    """Transforms of torch.func wrap the inputs of a pass, which no longer belong to it at the end of the step."""
    model, rule = Model(nodes=nodes), RecordsInModel()
    rule.start(RuleSetup(model=model, loader=None))
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(model, parameters, (x[None],))
        return output.square().sum()

    vmap(grad(loss), in_dims=(None, 0))(parameters, X[:5])
    rule.after_step(RuleStep(number=1, drawn=None, norms=None, clip_norm=1.0))
    rule.stop()
    assert rule.facts().rows_by_tensor == held


def test_the_inputs_of_a_first_step_that_an_exception_ends_are_compared() -> None:
    model, rule = Model(nodes=X), RecordsInModel()
    rule.start(RuleSetup(model=model, loader=None))
    model(X[:5])
    rule.stop()
    rule.after_step(RuleStep(number=1, drawn=None, norms=None, clip_norm=1.0))
    assert rule.facts().rows_by_tensor == {"attribute nodes": 5}
