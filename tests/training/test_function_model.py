"""Models of decorated functions: counted, seeded, and refused with the layer that is in the way."""

import pytest
import torch
from torch import nn

import dpspec
from dpspec.contract import Facts, FrozenMap, ModelError
from dpspec.contract.parts import PARTS
from dpspec.training.function_model import FunctionModel
from dpspec.training.gradients.flat_model import check_module

pytestmark = pytest.mark.rounding

FACTS = Facts(records=100, features=6, classes=3, shape=(6,), digest="0")


def model(make, facts=FACTS, **options) -> FunctionModel:
    def net(facts, *, width: int = 5):
        return make(facts, width)

    (part,) = getattr(dpspec.model("net")(net), PARTS)
    return FunctionModel(part, FrozenMap(options), facts)


def dense(facts, width, *between):
    return nn.Sequential(nn.Linear(facts.features, width), *between, nn.Linear(width, facts.classes))


def test_parameters_are_counted():
    assert model(dense).parameters() == 7 * 5 + 6 * 3
    assert model(dense, width=8).parameters() == 7 * 8 + 9 * 3


def test_frozen_parameters_are_not_counted():
    def frozen(facts, width):
        module = dense(facts, width)
        module[0].requires_grad_(False)
        return module

    assert model(frozen).parameters() == 6 * 3


def test_the_seed_determines_weights_and_no_global_state_changes():
    factory, before = model(dense), torch.get_rng_state()
    first, again, other = (factory.build(seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


class Centered(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        self.total = self.total + x.detach().sum()
        return x


class WrongInBatches(torch.autograd.Function):
    """Doubles, and triples if it is vectorized over records."""

    @staticmethod
    def forward(x):
        return x * 2.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2.0

    @staticmethod
    def vmap(info, in_dims, x):
        return x * 3.0, in_dims[0]


class Doubled(nn.Module):
    def forward(self, x):
        return WrongInBatches.apply(x)


class Whole(nn.Module):
    """Mixes records outside of its layers."""

    def __init__(self, facts):
        super().__init__()
        self.layer = nn.Linear(facts.features, facts.classes)

    def forward(self, x):
        return self.layer(x - x.mean(0))


REFUSED = [
    (
        lambda f, w: dense(f, w, nn.BatchNorm1d(w)),
        r"layer '1' \(BatchNorm1d\).*GroupNorm.*ModuleValidator.fix\(module\)",
    ),
    (lambda f, w: dense(f, w, nn.Dropout(0.5)), r"layer '1' \(Dropout\) applies dropout"),
    (lambda f, w: dense(f, w, nn.Sequential(nn.ReLU(), Centered())), r"layer '1.1' \(Centered\) mixes records"),
    (lambda f, w: Whole(f), r"^Whole mixes records"),
    (lambda f, w: dense(f, w, Counting()), "changes the buffer '1.total'"),
    (lambda f, w: nn.Linear(9, 3), r"rejects a record of shape \[6\]"),
    (lambda f, w: nn.Linear(6, 2), r"one number for each of 3 classes"),
    (lambda f, w: dense(f, w).double(), "parameters in float64 on cpu; dpspec needs float32 on cpu"),
    (lambda f, w: nn.ReLU(), "returns a module without parameters"),
    (lambda f, w: "net", "returns a str, not a torch.nn.Module"),
    (lambda f, w: nn.Linear(f.nothing, 3), r"net\(\) fails at .*test_function_model.py:\d+: AttributeError"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_in_the_way_is_named(make, message):
    with pytest.raises(ModelError, match=message):
        model(make)


@pytest.mark.parametrize(
    ("layers", "fix"),
    [
        ((nn.Linear(64, 4),), r"add nn.Flatten\(\) before layer '0' \(Linear\)"),
        ((nn.Conv2d(1, 2, 3), nn.Linear(72, 4)), r"add nn.Flatten\(\) before layer '1' \(Linear\)"),
        ((nn.Flatten(), nn.Linear(63, 4)), "build the model for `facts.shape`"),
    ],
)
def test_a_missing_flatten_is_named(layers, fix):
    with pytest.raises(ModelError, match=fix):
        check_module(nn.Sequential(*layers), Facts(records=9, features=64, classes=4, shape=(1, 8, 8)))


def test_a_gradient_that_differs_in_a_batch_is_refused():
    with pytest.raises(ModelError, match=r"in a batch differs from its gradient alone, most in '0.weight'"):
        model(lambda f, w: dense(f, w, Doubled()))


def test_ordinary_models_are_accepted():
    images = Facts(records=9, features=64, classes=4, shape=(1, 8, 8), digest="0")

    def convolution(facts, width):
        layers = nn.Conv2d(1, width, 3), nn.GroupNorm(1, width), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(*layers, nn.LazyLinear(facts.classes) if width == 0 else nn.Linear(9 * width, 4))

    assert model(convolution, facts=images).parameters() == 5 * 10 + 10 + 46 * 4 - 4 + 4
