"""A model as a function of one flat vector of its trainable parameters, and checks that it treats records apart."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import UnionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dpspec.contract import Facts, ModelError, ModelFactory
from dpspec.models import modules
from dpspec.training.gradients.memory import ran_out


@dataclass(frozen=True)
class Layout:
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        trainable = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
        if not trainable:
            raise ValueError("the model has no trainable parameters")
        return cls(names=tuple(name for name, _ in trainable), shapes=tuple(shape for _, shape in trainable))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        if flat.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} parameters, got shape {tuple(flat.shape)}")
        return self.split(flat)

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """The tensors by name of vectors (..., P), with the same leading dimensions."""
        shaped = zip(self.names, torch.split(rows, list(self.sizes), dim=-1), self.shapes, strict=True)
        return {name: piece.view((*rows.shape[:-1], *shape)) for name, piece, shape in shaped}

    def flatten(self, named: Mapping[str, Tensor], leading: int = 0) -> Tensor:
        """Concatenate tensors by name into one vector (P,), or (..., P) with ``leading`` batch dimensions."""
        pieces = [named[name] for name in self.names]
        return torch.cat([piece.reshape(*piece.shape[:leading], -1) for piece in pieces], dim=leading)


def places(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by every qualified name: a tied parameter appears several times."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        tensors.update(module.named_parameters(prefix, recurse=False, remove_duplicate=False))
        tensors.update(module.named_buffers(prefix, recurse=False, remove_duplicate=False))
    return tensors


def trained(model: nn.Module) -> dict[str, str]:
    """Map every qualified name of a trainable parameter to its name in the layout. A tied parameter has several."""
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    return {qualified: names[id(value)] for qualified, value in places(model).items() if id(value) in names}


def flatten(model: nn.Module) -> Tensor:
    layout = Layout.of(model)
    return layout.flatten({name: p.detach() for name, p in model.named_parameters() if p.requires_grad})


def load(model: nn.Module, flat: Tensor) -> None:
    views = Layout.of(model).unflatten(flat)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in views:
                parameter.copy_(views[name])


_Rule = tuple[type[nn.Module] | UnionType, Callable[[Any], bool], str, str]

_RULES: tuple[_Rule, ...] = (
    # InstanceNorm derives from BatchNorm in torch but couples nothing unless it tracks running statistics.
    (
        _InstanceNorm,
        lambda m: bool(m.track_running_stats),
        "keeps running statistics over records",
        "set track_running_stats=False",
    ),
    (
        _BatchNorm,
        lambda m: not isinstance(m, _InstanceNorm),
        "mixes the records of a batch",
        "use torch.nn.GroupNorm, as module = opacus.validators.ModuleValidator.fix(module) does, and on vectors "
        "torch.nn.LayerNorm(width), because groups of one value are all 0",
    ),
    (
        _DropoutNd | nn.MultiheadAttention,
        lambda m: bool((m.p if isinstance(m, _DropoutNd) else m.dropout) > 0),
        "applies dropout with torch's global generator, so the run's seed would not determine it",
        "set dropout=0 or remove it: DP-SGD's noise already regularizes",
    ),
    (
        nn.RNNBase,
        lambda m: True,
        "executes all steps in one operation that hides its weights",
        "write the recurrence with torch.nn.RNNCell, GRUCell or LSTMCell",
    ),
    (
        nn.Embedding | nn.EmbeddingBag,
        lambda m: m.max_norm is not None or m.scale_grad_by_freq or m.sparse,
        "modifies its table during lookups, or scales gradients by frequency in the batch",
        "omit max_norm, scale_grad_by_freq and sparse",
    ),
)

#: Layers whose output for a record depends on that record only, for all options.
_SEPARATE: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding),
        *(nn.GroupNorm, nn.LayerNorm, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
        *(nn.ModuleList, modules.Sum, modules.Subsample, modules.Encoder, modules.EncoderLayer),
    }
)


def record_by_record(model: nn.Module) -> bool:
    """Whether all layers are known to treat records independently, of exactly these types and without hooks."""
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return False
        separate = module.start_dim >= 1 if type(module) is nn.Flatten else type(module) in _SEPARATE
        if not separate:
            return False
    return True


def require_uncoupled(model: nn.Module) -> None:
    """Raise ``ModelError`` with each layer without per-example gradients: its name, the reason and the replacement."""
    problems = []
    for name, module in model.named_modules():
        for kind, applies, reason, instead in _RULES:
            if isinstance(module, kind) and applies(module):
                problems.append(f"{layer_name(name, module)} {reason}; {instead}")
                break
    if problems:
        raise ModelError("the model has no per-example gradients: " + "; ".join(problems))


@contextmanager
def naming_layers(model: nn.Module) -> Iterator[None]:
    """Convert errors of ``torch.func.vmap`` within this context to a ``ModelError`` that names the layer."""
    with current_layer(model) as describe_layer:
        try:
            yield
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            reason = str(error).partition("\n")[0]
            raise ModelError(
                f"the model has no per-example gradients: {describe_layer()} uses an operation that "
                "torch.func.vmap does not support; use tensor operations without .item() and branches on values: "
                f"{reason}"
            ) from error


@contextmanager
def current_layer(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Track the forward pass; the yielded function describes the layer that is being executed."""
    names = {module: name for name, module in model.named_modules()}
    inside: list[nn.Module] = []

    def entered(module: nn.Module, inputs: Any) -> None:
        if module in names:
            inside.append(module)

    def left(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if module in names:
            inside.pop()

    def describe_layer() -> str:
        layer = inside[-1] if inside else model
        return layer_name(names[layer], layer)

    hooks = (register_module_forward_pre_hook(entered), register_module_forward_hook(left))
    try:
        yield describe_layer
    finally:
        for hook in hooks:
            hook.remove()


def layer_name(name: str, module: nn.Module) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__


#: Exceptions of forward passes with wrong shapes or types.
_UNFIT = (RuntimeError, ValueError, TypeError, IndexError)


def check_model(factory: ModelFactory, facts: Facts) -> None:
    """Check a plugin's model before training: run it on one zero record. torch's random generators are restored."""
    with torch.random.fork_rng(devices=[]):
        check_module(factory.build(0).eval(), facts)


def check_module(model: nn.Module, facts: Facts) -> None:
    shape = facts.shape or (facts.features,)
    record = torch.zeros((1, *shape), dtype=torch.float32 if facts.vocabulary is None else torch.int64)
    require_uncoupled(model)
    with torch.no_grad(), current_layer(model) as describe_layer:
        try:
            out = model(record)
        except _UNFIT as error:
            if ran_out(error):
                raise
            first_line = str(error).strip().partition("\n")[0] or type(error).__name__
            failed_layer = describe_layer()
            fix = "build the model for `facts.shape`, or change the `shape` of the data"
            if len(shape) > 1 and _accepts_flattened(model, record):
                fix = f"add nn.Flatten() before {failed_layer}"
            text = f"the model rejects a record of shape {list(shape)}: {failed_layer}: {first_line}; {fix}"
            raise ModelError(text) from error
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != 1 or out.shape[1] < facts.classes:
        returned = list(out.shape) if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise ModelError(
            f"the model returns {returned} for one record, but training needs one number for each of "
            f"{facts.classes} classes, {[1, facts.classes]}; "
            "end the model with a Flatten and a layer with `facts.classes` outputs"
        )


def _accepts_flattened(model: nn.Module, record: Tensor) -> bool:
    """Whether the model accepts a record if its linear layers get flat inputs."""

    def flatten(layer: nn.Module, inputs: Any) -> Any:
        return (inputs[0].flatten(1),) if isinstance(layer, nn.Linear) else None

    hook = register_module_forward_pre_hook(flatten)
    try:
        model(record)
    except _UNFIT:
        return False
    finally:
        hook.remove()
    return True


def call(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Evaluate a model on ``x`` with ``tensors`` by qualified name (``places``). Attention runs as matrix products."""
    with sdpa_kernel(SDPBackend.MATH):
        outputs: Tensor = functional_call(model, dict(tensors), (x,), tie_weights=False)
    return outputs
