"""Buffers that a forward pass moves without reading its records, such as the vectors of spectral normalization.

Power iteration replaces a vector by a function of itself and the weights. Both are released or follow from released
values, so the new vector is a post-processing. A step is replayed: from the buffers before it, the model runs on other
inputs, of another number of rows. If all runs end with the same bits as the step, and read no tensor apart from their
inputs, parameters and buffers, and no number of many digits, no record was read. A step with
several passes moves the buffers further, so that the number of passes shows, which may depend on the records.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpspec_recording.fingerprints import tensor_digest
from dpspec_recording.model_hook import ModelHook

#: Bytes of all buffers of a model up to which they are kept between steps.
_MOST_BYTES = 2**22


#: Largest integer that an operation may add or multiply with: a larger one may be a count of records.
_LARGEST = 2

#: The types of such arguments.
_NUMBERS = torch._C.NumberType, torch._C.TensorType


@dataclass(frozen=True)
class _Input:
    """A tensor of the last pass, without its values."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def other(self, rows: int) -> Tensor:
        """Random values, in ``rows`` more rows; integers are 0 or 1, which every vocabulary has."""
        shape = (self.shape[0] + rows, *self.shape[1:]) if self.shape and rows else self.shape
        if self.dtype.is_floating_point:
            return torch.randn(shape).to(self.device, self.dtype)
        return torch.randint(0, 2, shape).to(self.device, self.dtype)


class _OwnTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on other tensors than the given ones and their results, and with numbers of many digits.

    A script may keep such values of records, such as a mean, outside of the model.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = {id(tensor): tensor for tensor in tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_constant = func is torch.ops.aten.lift_fresh.default  # of numbers in the code
        if not is_constant and any(id(tensor) not in self._own for tensor in read):
            raise ValueError("a tensor of the script")
        arguments = zip(func._schema.arguments, args, strict=False)
        scalars = [value for argument, value in arguments if isinstance(argument.type, _NUMBERS)]
        floats = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, float)]
        if not all(map(_is_short, floats)) or any(abs(value) > _LARGEST for value in scalars if isinstance(value, int)):
            raise ValueError("a number of the script")
        result = func(*args, **(kwargs or {}))
        self._own |= {id(leaf): leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


class MovingBuffers:
    """The buffers of a model before the current step, and the form of the inputs of the last pass."""

    def __init__(self, model: nn.Module) -> None:
        """Keep the buffers, unless they are large."""
        self._model = model
        self._before: dict[str, Tensor] = {}
        self._inputs: Any = None
        self._is_mapped = False
        self.keep()

    @property
    def hook(self) -> ModelHook:
        """A hook before each pass of the model, with its keyword arguments."""
        return ModelHook(self._note)

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training and self._before and not torch.compiler.is_compiling():
            self._is_mapped = torch._C._functorch.peek_interpreter_stack() is not None
            self._inputs = pytree.tree_map(_form, (args, kwargs))

    def keep(self) -> None:
        """Keep the present buffers as those before the next step."""
        buffers = dict(self._model.named_buffers())
        if sum(buffer.nbytes for buffer in buffers.values()) <= _MOST_BYTES:
            self._before = {name: buffer.detach().clone() for name, buffer in buffers.items()}

    def is_kept(self, name: str, tensor: Tensor) -> bool:
        """Whether a buffer has the bits that were kept."""
        return name in self._before and tensor_digest(self._before[name]) == tensor_digest(tensor)

    def reads_no_record(self, names: Iterable[str]) -> bool:
        """Whether one pass on other records moves these buffers as the step did."""
        if self._inputs is None or not set(names) <= self._before.keys():
            return False
        executed = dict(self._model.named_buffers())
        digests = {name: tensor_digest(executed[name]) for name in names if name in executed}
        rows = (0,) if self._is_mapped else (0, 1)  # a pass under vmap gets one record
        try:
            replays = [self._replayed(added) for added in (*rows, rows[-1])]
        except Exception:  # an input that the model refuses, one of unknown values, or a value of the script
            return False
        return all(tensor_digest(buffers[name]) == digests.get(name) for buffers in replays for name in names)

    def _replayed(self, rows: int) -> dict[str, Tensor]:
        """The buffers after a pass on other inputs."""
        buffers = {name: buffer.clone() for name, buffer in self._before.items()}

        def other(form: Any) -> Any:
            if isinstance(form, _Input):
                return form.other(rows)
            if form is None or isinstance(form, bool | str):
                return form
            raise TypeError("an input of another type")

        devices = {buffer.device.index for buffer in buffers.values() if buffer.device.type == "cuda"}
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=sorted(index or 0 for index in devices)),
            ModelHook.paused(),
            _restored(self._model),
        ):
            args, kwargs = pytree.tree_map(other, self._inputs)
            inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            with _OwnTensors([*inputs, *buffers.values(), *self._model.parameters()]):
                torch.func.functional_call(self._model, buffers, args, kwargs)
        return buffers


def _is_short(number: float) -> bool:
    """Whether three digits state a number, as a constant of the code; the mean of some values has more."""
    return float(f"{number:.3g}") == number


def _form(value: Any) -> Any:
    return _Input(value.shape, value.dtype, value.device) if isinstance(value, Tensor) else value


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules: spectral normalization sets the normalized weight."""
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for present, before in attributes:
            present.clear()
            present.update(before)
