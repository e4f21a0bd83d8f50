"""Models of decorated functions: parameters are counted, and per-record gradients are checked on two batches."""

from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from dpspec.contract import Facts, FrozenMap, ModelError
from dpspec.contract.parts import Part
from dpspec.data.function_data import seeded
from dpspec.training.gradients.flat_model import Layout, check_module, layer_name
from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.losses import cross_entropy, squared_error

#: Number of records of each of the two batches.
_BATCH = 4

#: Maximum relative difference of a record's gradient in a batch from its gradient alone: rounding in float32.
_ROUNDING = 1e-2


class FunctionModel:
    """A :class:`~dpspec.contract.ModelFactory`. Raises ``ModelError`` for modules without per-record gradients."""

    def __init__(self, part: Part, options: FrozenMap, facts: Facts) -> None:
        self.build = partial(_build, part, options, facts)
        self._parameters = _count(part, options, facts)

    def parameters(self) -> int:
        return self._parameters


def _build(part: Part, options: FrozenMap, facts: Facts, seed: int) -> nn.Module:
    name = f"{part.function.__name__}()"
    try:
        with seeded(seed):
            module = part.call(options, facts)
    except Exception as error:
        raise ModelError(f"{name} fails at {part.located(error)}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name} returns a {type(module).__name__}, not a torch.nn.Module")
    kinds = {f"{str(p.dtype).removeprefix('torch.')} on {p.device.type}" for p in module.parameters()}
    if not kinds:
        raise ModelError(f"{name} returns a module without parameters")
    if kinds != {"float32 on cpu"}:
        raise ModelError(f"{name} returns parameters in {', '.join(sorted(kinds))}; dpspec needs float32 on cpu")
    return module


@lru_cache(maxsize=16)
def _count(part: Part, options: FrozenMap, facts: Facts) -> int:
    """The number of trainable parameters, if the module treats records independently."""
    module = _build(part, options, facts, 0)
    with torch.random.fork_rng(devices=[]):
        check_module(module.eval(), facts)
        first, second = (records_of(facts, seed) for seed in (0, 1))
        second[0] = first[0]
        labels = targets_of(facts)
        module.train()
        require_constant_buffers(module, first)
        require_separate_records(module, first, second)
        for batch in (first, second):
            require_own_gradients(module, batch, labels)
    return Layout.of(module).size


def targets_of(facts: Facts) -> Tensor:
    """Targets (n,) of one of the batches: labels, or real numbers."""
    return torch.linspace(-1.0, 1.0, _BATCH) if facts.real_target else torch.arange(_BATCH) % facts.classes


def records_of(facts: Facts, seed: int) -> Tensor:
    shape, source = (_BATCH, *(facts.shape or (facts.features,))), torch.Generator().manual_seed(seed)
    if facts.vocabulary is not None:
        return torch.randint(0, facts.vocabulary, shape, generator=source)
    return torch.randn(shape, generator=source)


def require_constant_buffers(module: nn.Module, x: Tensor) -> None:
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        module(x)
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ModelError(f"a forward pass changes the buffer {name!r}, which releases records without noise")


def require_separate_records(module: nn.Module, first: Tensor, second: Tensor) -> None:
    """Require equal outputs for record 0, which both batches share, and name the layer that mixes records."""
    for first_pass, second_pass in zip(*(_passes(module, batch) for batch in (first, second)), strict=True):
        (name, layer, *tensors), (_, _, *second_tensors) = first_pass, second_pass
        unchanged = [torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(tensors, second_tensors, strict=True)]
        if unchanged == [True, False]:
            raise ModelError(
                f"{layer_name(name, layer)} mixes records: its output for a record depends on the other records of the "
                "batch; compute every record by itself, over other dimensions than the first"
            )


def _passes(module: nn.Module, x: Tensor) -> list[tuple[Any, ...]]:
    """The name, the layer, and input and output of record 0 of each call, in the order in which calls end."""
    calls: list[tuple[Any, ...]] = []
    names = {layer: name for name, layer in module.named_modules()}

    def record(layer: nn.Module, inputs: Any, output: Any) -> None:
        tensors = [t[0].detach().clone() for t in (*inputs[:1], output) if isinstance(t, Tensor) and t.ndim and len(t)]
        if len(tensors) == 2:
            calls.append((names[layer], layer, *tensors))

    hooks = [layer.register_forward_hook(record) for layer in names]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def require_own_gradients(module: nn.Module, x: Tensor, y: Tensor) -> None:
    record_loss = squared_error if y.is_floating_point() else cross_entropy
    rows, layout = per_example_gradients(FlatModel(module, loss=record_loss), x, y), Layout.of(module)
    trainable = [p for p in module.parameters() if p.requires_grad]
    for index, row in enumerate(rows):
        record = slice(index, index + 1)
        loss = record_loss(module(x[record]), y[record]).sum()
        alone = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trainable, materialize_grads=True)])
        difference = (row - alone).abs()
        if not float(difference.norm()) <= _ROUNDING * float(alone.norm()) + 1e-6:
            by_parameter = layout.unflatten(difference)
            worst = max(by_parameter, key=lambda name: float(by_parameter[name].norm()))
            raise ModelError(
                f"the gradient of a record in a batch differs from its gradient alone, most in {worst!r}: the layer "
                "mixes records, or its backward pass does not belong to its forward pass"
            )
