"""Code of a script that runs within the step of an optimizer of torch, between two looks of the recorder.

Such code can move the parameters and leave no trace: a replaced method, an option or gradient of a class that overloads
arithmetic, a mapping that runs code when the step reads it, a hook that follows the recorder's. The recorder names what
it finds, and a proof assumes that this code reads no record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.recording.watching.gradients.replaced_methods import is_defined_in

#: Types whose operations are those of Python and torch, and mappings that run no code.
_PLAIN = (float, int, bool, str, type(None), Tensor, nn.Parameter, torch.dtype, torch.device)
_MAPPINGS = (dict, defaultdict)


class StepCode:
    """Collects the names of such code."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._known: set[FunctionType] = set()
        self._names: dict[str, None] = {}

    @property
    def found(self) -> list[str]:
        """The first 20 names."""
        return [name[:100] for name in self._names][:20]

    def look(self, *, followed: bool = False) -> None:
        """A step begins or has ended. ``followed``: a hook comes between the recorder's look and the step."""
        for name in self._found_now():
            self._names.setdefault(name)
        if followed:
            self._names.setdefault("a hook that was registered since the step before")

    def _found_now(self) -> Iterator[str]:
        optimizer = self._optimizer
        kind = type(optimizer)
        for name, value in vars(optimizer).items():
            if name != "step" and callable(value) and hasattr(kind, name):
                yield f"method {name} of this optimizer"
        for base in kind.__mro__:
            if base.__module__.startswith("torch.optim"):
                for name, function in vars(base).items():
                    if isinstance(function, FunctionType) and function not in self._known:
                        if is_defined_in(function, ("torch", "typing_extensions")):
                            self._known.add(function)
                        else:
                            yield f"method {name} of {base.__name__}"
        if type(optimizer.state) not in _MAPPINGS:
            yield f"optimizer.state of class {type(optimizer.state).__name__}"
        for group in optimizer.param_groups:
            if type(group) is not dict:
                yield f"parameter group of class {type(group).__name__}"
            for name, value in group.items():
                for one in value if type(value) in (list, tuple) else (value,):
                    if not _is_plain(one):
                        yield f"option {name} of class {type(one).__name__}"
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and type(gradient) not in _PLAIN:
                    yield f"gradient of class {type(gradient).__name__}"


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN or (isinstance(value, np.generic) and kind is getattr(np, kind.__name__, None))
