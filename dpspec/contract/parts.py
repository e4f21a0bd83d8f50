"""Decorators that turn a function of a project's file into a provider, without a package.

    @dpspec.model("mynet")
    def mynet(facts, *, width: int = 64):
        return nn.Sequential(nn.Linear(facts.features, width), nn.ReLU(), nn.Linear(width, facts.classes))

``[tool.dpspec] plugins`` of ``pyproject.toml`` or ``--plugin`` names the file. All other parameters become keys of the
spec, here ``model: {kind: mynet, width: 64}``. Their types are int, float, bool, str, Literal, Optional and lists of
these, and their descriptions the section ``Args`` of the docstring. A parameter without a default is required.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from dpspec.contract.attacks import Space
from dpspec.contract.findings import Assumption, AssumptionStatus
from dpspec.contract.fragments import block
from dpspec.contract.frozen import Json

F = TypeVar("F", bound=Callable[..., Any])

#: Attribute of a decorated function with its parts.
PARTS = "dpspec_parts"

_Reader = Callable[[Json], Any]

_SCALARS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A decorated function.

    Attributes:
        family: The name of a family of providers, such as ``model``.
        schema: Schema of the function's options.
        readers: Convert the value of each option to the type of its parameter.
        settings: The other fields of the descriptor.
        takes_folder: Whether a function of a dataset receives the folder of the spec.
    """

    family: str
    kind: str
    function: Callable[..., Any]
    schema: dict[str, Json]
    readers: Mapping[str, _Reader]
    settings: Mapping[str, Any] = field(default_factory=dict)
    takes_folder: bool = False

    @property
    def summary(self) -> str:
        """The first line of the docstring, or the name of the function."""
        return (inspect.getdoc(self.function) or f"{self.function.__name__}() of this project").partition("\n")[0]

    def call(self, options: Mapping[str, Json], *arguments: Any) -> Any:
        """Call the function with ``arguments`` and its own keys among ``options``."""
        named = {name: read(options[name]) for name, read in self.readers.items() if name in options}
        return self.function(*arguments, **named)

    def located(self, error: Exception) -> str:
        """Describe an error of the function with its line in the function's file."""
        return located(error, self.function.__code__.co_filename)


def located(error: BaseException, file: str) -> str:
    """Describe an error with the last line of a file that it passed, such as ``parts.py:3: ValueError: no rows``."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, message = [error.lineno], error.msg
    return f"{file}{f':{lines[-1]}' if lines else ''}: {type(error).__name__}: {message}"


def model(kind: str, *, tokens: bool = False) -> Callable[[F], F]:
    """Offer a function ``(facts, ...)`` as the model kind ``kind``.

    Args:
        kind: The value of ``model.kind``: lower-case letters, digits and single hyphens.
        tokens: Whether the model takes token ids.

    Returns:
        A decorator. The function returns a ``torch.nn.Module`` that maps records (n, *facts.shape) to scores
        (n, facts.classes). Its global random generators are seeded with the seed of the run.
    """
    return _decorator("model", kind, tokens=tokens)


def dataset(
    kind: str, *, classes: int | None = None, label: str | None = None, target: str = "class"
) -> Callable[[F], F]:
    """Offer a function as the data kind ``kind``.

    Args:
        kind: The value of ``data.kind``.
        classes: The number of classes, a public constant; None if specs set ``data.classes``.
        label: The column of labels of a data frame; by default the last.
        target: ``class``, or ``real`` for regression: ``y`` holds finite real numbers, and models have one output.

    Returns:
        A decorator. The function returns ``(x, y)``, ``(x, y, x_test, y_test)``, a map-style torch ``Dataset`` of pairs
        ``(x, y)``, a pandas data frame, or a pair of training and test data. If its first parameter is named
        ``folder``, it receives the folder of the spec.
    """
    if target not in ("class", "real") or (target == "real" and classes is not None):
        raise ValueError("target must be class or real, and real targets have no classes")
    return _decorator("dataset", kind, classes=classes, label=label, target=target)


def loss(kind: str) -> Callable[[F], F]:
    """Offer a function ``(outputs, targets, ...)`` as the loss ``kind``.

    Args:
        kind: The value of ``training.loss``, or of ``training.loss.kind`` with options.

    Returns:
        A decorator. The function receives outputs (b, k) of the model and labels (b,), and returns one value per record
        (b,), from the record's own row alone.
    """
    return _decorator("loss", kind)


def score(kind: str, *, learns: bool = False, gradients: bool = False, models: int = 0) -> Callable[[F], F]:
    """Offer a function ``(observed, ...)`` of :class:`~dpspec.contract.attacks.Observed` as the score ``kind``.

    Args:
        kind: The value of ``audit.score``.
        learns: Like ``gradients`` and ``models`` a field of :class:`~dpspec.contract.attacks.Score`.
        gradients: See there.
        models: See there.

    Returns:
        A decorator. The function returns one number per canary; higher means more likely inserted.
    """
    return _decorator("score", kind, learns=learns, gradients=gradients, models=models)


def canary(kind: str, *, space: Space = "input", reads_data: bool = False) -> Callable[[F], F]:
    """Offer a function ``(asked, ...)`` of :class:`~dpspec.contract.attacks.Asked` as the canary ``kind``.

    Args:
        kind: The value of ``audit.canary.kind``.
        space: ``input`` or ``gradient``.
        reads_data: Whether the function receives the training records.

    Returns:
        A decorator. The function returns ``Records``, or in space ``gradient`` rows (count, parameters).
    """
    return _decorator("canary", kind, space=space, reads_data=reads_data)


def backend(
    kind: str,
    *,
    capabilities: Collection[str] = (),
    schemes: Collection[str] | None = None,
    constants: AssumptionStatus | None = None,
    losses: bool = False,
) -> Callable[[F], F]:
    """Offer a function ``(job, ...)`` of :class:`~dpspec.contract.TrainingJob` as the backend ``kind``.

    Args:
        kind: The value of ``training.backend``.
        capabilities: Names of ``CAPABILITIES``: the reports of the function to ``job.observers``.
        schemes: The sampling schemes that it supports; None for all.
        constants: Status of the assumption that divisor, rate, clip norm and schedule do not depend on the records:
            ``by-construction`` if they come from the job, ``false`` if one is computed from the records.
        losses: Whether the function trains with ``job.loss``.

    Returns:
        A decorator. The function trains ``job.model`` in place.
    """
    stated: Assumption | str = ""
    if constants is not None:
        text = f"the backend {kind} states where its constants come from"
        stated = Assumption(name="data-independent-hyperparameters", status=constants, text=text)
    reported, supported = frozenset(capabilities), None if schemes is None else frozenset(schemes)
    return _decorator("backend", kind, capabilities=reported, schemes=supported, constants=stated, losses=losses)


def reporter(format: str, *, suffix: str = ".txt") -> Callable[[F], F]:
    """Offer a function ``(result, *, internal)`` as the report format ``format``.

    Args:
        format: The name for ``--report``.
        suffix: The suffix of files of this format.

    Returns:
        A decorator. The function returns the report as a string.
    """
    return _decorator("reporter", format, suffix=suffix)


def _decorator(family: str, kind: str, **settings: Any) -> Callable[[F], F]:
    if not isinstance(kind, str):
        raise TypeError(f'write @dpspec.{family}("name"), with a name for specs')

    def decorate(function: F) -> F:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
        takes_folder = family == "dataset" and bool(parameters) and parameters[0].name == "folder"
        received = {"dataset": int(takes_folder), "loss": 2}.get(family, 1)
        if len(parameters) < received:
            first = "parameters for outputs and targets" if received == 2 else "a first parameter"
            raise TypeError(f"{function.__name__}() needs {first}")
        options = parameters[received:] if family != "reporter" else []
        schema, readers = _options(function, options)
        part = Part(
            family=family,
            kind=kind,
            function=function,
            schema=schema,
            readers=readers,
            settings=settings,
            takes_folder=takes_folder,
        )
        setattr(function, PARTS, (*getattr(function, PARTS, ()), part))
        return function

    return decorate


def _options(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> tuple[dict[str, Json], dict[str, _Reader]]:
    """The schema and the readers of a function's options."""
    name = function.__name__
    properties: dict[str, Json] = {}
    readers: dict[str, _Reader] = {}
    required = []
    descriptions = _described(inspect.getdoc(function) or "")
    for parameter in parameters:
        where = f"parameter {parameter.name!r} of {name}()"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{where} cannot be a key of a spec: name each option")
        default = parameter.default
        annotation = type(default) if parameter.annotation is parameter.empty else parameter.annotation
        typed = _typed(annotation)
        if typed is None:
            raise TypeError(f"{where} needs a type: int, float, bool, str, Literal, Optional, or a list of these")
        schema, readers[parameter.name] = typed
        schema = {**schema, "description": descriptions.get(parameter.name, f"Option {parameter.name} of {name}().")}
        if default is parameter.empty:
            required.append(parameter.name)
        elif default is not None and not (isinstance(default, float) and not math.isfinite(default)):
            schema["default"] = list(default) if isinstance(default, list | tuple) else default
        properties[parameter.name] = schema
    return block(None, required or None, **properties), readers


def _typed(annotation: Any) -> tuple[dict[str, Json], _Reader] | None:
    """The schema of values of a type, and the function that converts them to it; None for unsupported types."""
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}, annotation
    origin, arguments = get_origin(annotation), [a for a in get_args(annotation) if a not in (types.NoneType, ...)]
    if origin is Literal:
        return {"enum": arguments}, lambda value: value
    if len(arguments) != 1:
        return None
    inner = _typed(arguments[0])
    if inner is None or origin in (Union, types.UnionType):
        return inner
    if origin not in (list, tuple, Sequence):
        return None
    schema, read = inner
    collect: Callable[[Any], Any] = tuple if origin is tuple else list
    return {"type": "array", "items": schema}, lambda values: collect(map(read, values))


_ARGUMENT = re.compile(r"^\s+(\w+)(?: \([^)]*\))?:\s+(\S.*)$", re.MULTILINE)


def _described(docstring: str) -> dict[str, str]:
    """The descriptions of parameters in the section ``Args`` of a docstring, of one line each."""
    _, _, section = docstring.partition("\nArgs:\n")
    return dict(_ARGUMENT.findall(section))
