"""Code of the script that runs in a step: its hooks on the optimizer, and methods of Opacus that it replaced."""

import contextlib
import operator
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType, GetSetDescriptorType
from typing import Any

import torch

#: Methods that sum, add noise, divide and step, and functions that they call.
_METHODS = (
    *("clip_and_accumulate", "accumulate", "_check_skip_next_step", "add_noise", "scale_grad", "reduce_gradients"),
    *("pre_step", "step"),
)
_FUNCTIONS = ("_generate_noise", "_check_processed_flag", "_mark_as_processed")

#: Methods of a model with ghost clipping.
_OF_MODELS = ("get_clipping_coef", "get_norm_sample")

#: Packages whose wrappers of ``step`` count calls, measure time or move data, and call the method.
_WRAPPERS = ("torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric")

#: Code of methods ``step`` of optimizers.
_STEPS: set[CodeType] = set()

_BEFORE = "_optimizer_step_pre_hooks"


class _HooksAndLast(UserDict[int, Any]):
    """The hooks of a script before a step, followed by one of the recorder.

    A hook may remove itself or add others while torch runs the hooks, because torch iterates over a list.
    """

    def __init__(self, hooks: Any, last: Callable[..., None]) -> None:
        # not a copy: handles of earlier hooks refer to this dictionary
        self.data: Any = hooks
        self.last = [last]

    def values(self) -> Any:
        return [*self.data.values(), *self.last]

    def move_to_end(self, key: int, last: bool = True) -> None:
        self.data.move_to_end(key, last)


class StepHooks:
    """Calls ``before`` after all other hooks that precede a step, and ``after`` before all others that follow it.

    Otherwise changes by those hooks would be attributed to the step.

    Attributes:
        ordered: Whether both were called at the last step, and no other hook of the optimizer and no closure ran
            between them.
        disordered: The number of steps for which this is false.
        loss_scaler: Whether an enabled ``GradScaler`` of torch called a step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._optimizer: Any = optimizer
        self._observe_before, self._observe_after = before, after
        self._before = _HooksAndLast(self._optimizer._optimizer_step_pre_hooks, self._begin)
        setattr(self._optimizer, _BEFORE, self._before)
        self._after = optimizer.register_step_post_hook(self._end)
        self._put_first()
        self._began, self.ordered, self.disordered, self.loss_scaler = False, True, 0, False

    def remove(self) -> None:
        self._before.last.clear()
        self._after.remove()

    def _begin(self, _: Any, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._began = all(one is None for one in (*given[1:], *named.values()))  # the first one is the optimizer
        self.loss_scaler = self.loss_scaler or _is_called_by_scaler()
        self._observe_before()
        # torch iterates over the hooks before a step now, and order can only be changed among those after it
        self._put_first()

    def _end(self, *_: Any) -> None:
        ids = list(getattr(self._optimizer, "_optimizer_step_post_hooks", ()))
        alone = self._before.last == [self._begin]
        self.ordered, self._began = self._began and alone and ids[:1] == [self._after.id], False
        self.disordered += not self.ordered
        self._observe_after()

    def _put_first(self) -> None:
        """Move the hook after a step before the others; nothing if it is gone or torch keeps hooks in another way."""
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            self._optimizer._optimizer_step_post_hooks.move_to_end(self._after.id, last=False)


class ReplacedMethods:
    """Collects the names of Opacus' methods that a script replaced, on the class, on the instance or in the module."""

    def __init__(self, optimizer: Any, model: Any) -> None:
        self._optimizer, self._model, self._class = optimizer, model, type(optimizer)
        kinds = [kind for kind in type(optimizer).__mro__ if kind not in torch.optim.Optimizer.__mro__]
        modules = {kind.__module__ for kind in kinds if kind.__module__.startswith("opacus.")}
        # the name of each class or module, its attributes, and the names of those that are checked; None of all
        self._spaces: list[tuple[str, Mapping[str, Any], Sequence[str] | None]]
        self._spaces = [(kind.__name__, vars(kind), None) for kind in kinds]
        self._spaces += [(kind.__name__, vars(kind), _OF_MODELS) for kind in type(model).__mro__]
        self._spaces += [(name, vars(sys.modules[name]), _FUNCTIONS) for name in sorted(modules)]
        self._functions = [part for _, part in self._parts() if isinstance(part, FunctionType)]
        self._seen: list[Any] | None = None
        self._names: dict[str, None] = {}

    @property
    def found(self) -> list[str]:
        return list(self._names)[:20]

    def check(self, watched: Mapping[str, Any]) -> None:
        objects = self._objects()
        seen = self._seen
        if seen is not None and len(objects) == len(seen) and all(map(operator.is_, objects, seen)):
            return
        self._seen = objects
        if type(self._optimizer) is not self._class:
            self._names.setdefault(f"class {type(self._optimizer).__name__}"[:100])
        for name, thing, packages in self._places(watched):
            if not is_of(thing, packages):
                self._names.setdefault(name[:100])

    def _objects(self) -> list[Any]:
        """Every object that :meth:`_places` starts from."""
        inner = self._optimizer.original_optimizer
        found = [type(self._optimizer), type(self._model), type(inner), type(inner).step, vars(inner).get("step")]
        found += map(vars(self._optimizer).get, _METHODS)
        for _, space, names in self._spaces:
            found += space.values() if names is None else map(space.get, names)
        found += map(operator.attrgetter("__code__"), self._functions)
        return found

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """What may run if Python reads or calls an attribute, with its name."""
        for label, space, names in self._spaces:
            for name in list(space) if names is None else names:
                thing = space.get(name)
                if type(thing) is property:
                    yield from (
                        (f"{label}.{name}", one) for one in (thing.fget, thing.fset, thing.fdel) if one is not None
                    )
                elif type(thing) not in (str, tuple, dict, type(None), GetSetDescriptorType):
                    yield f"{label}.{name}", thing

    def _places(self, watched: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        optimizer, kind = self._optimizer, type(self._optimizer)
        own, inner = vars(optimizer), optimizer.original_optimizer
        for name in _METHODS:
            put, method = own.get(name), getattr(kind, name, None)
            if put is not None and put is not watched.get(name):
                allowed = ("dpspec", *_WRAPPERS) if name == "step" else ("dpspec",)
                yield from ((f"{kind.__name__}.{name}", link, allowed) for link in _links(put, method))
        yield from ((name, part, ("opacus",)) for name, part in self._parts())
        step = vars(inner).get("step")
        if step is not None:
            yield from ((f"{type(inner).__name__}.step", link, _WRAPPERS) for link in _links(step, type(inner).step))


def _is_called_by_scaler() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "step" and code not in _STEPS:
            this = frame.f_locals.get("self")
            if isinstance(this, torch.amp.GradScaler) and this.is_enabled():
                return True
            if isinstance(this, torch.optim.Optimizer) and type(this).__module__.startswith(("torch.", "opacus.")):
                _STEPS.add(code)
        frame = frame.f_back
    return False


def _links(put: Any, method: Any) -> Iterator[Any]:
    """A wrapper and the functions under it, by ``__wrapped__``, down to the method of the class, which is excluded."""
    link = getattr(put, "__func__", put)
    while link is not None and link is not method:
        yield link
        link = getattr(link, "__wrapped__", None)


def put_method(holder: Any, name: str, method: Any) -> Callable[[], None]:
    """Replace a method of a class or an object; returns the function that undoes it unless other code replaced it too.

    Other code then calls this method, so it stays.
    """
    own, put = vars(holder).get(name), type.__setattr__ if isinstance(holder, type) else object.__setattr__
    put(holder, name, method)

    def undo() -> None:
        if vars(holder).get(name) is method:
            if own is None:
                object.__delattr__(holder, name)
            else:
                put(holder, name, own)

    return undo


def is_of(method: Any, packages: tuple[str, ...]) -> bool:
    if not isinstance(method, FunctionType):
        return False
    roots = [getattr(sys.modules.get(package), "__file__", None) for package in packages]
    file = Path(method.__code__.co_filename)
    return any(root is not None and Path(root).parent in file.parents for root in roots)
