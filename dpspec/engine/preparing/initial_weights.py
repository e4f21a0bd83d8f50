"""``model.initial``: weights that training starts from, read once and held to be public.

Bounds are about what training reveals of the records. Weights that were trained on those records reveal them from the
start, and no noise undoes that. No file tells what it was trained on, so that whoever writes ``model.initial`` says
that it was not on the private records; every proof of such a spec names that as an assumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dpspec.contract import Assumption, DataError, Facts, Finding, FrozenMap, ModelFactory, Outcome, Spec
from dpspec.models.weights_file import FromFile

#: The key of a model block that core reads, and no factory sees.
KEY = "initial"

PUBLIC = Assumption(
    name="public-initial-weights",
    status="declared",
    text="the weights that training starts from (model.initial) do not depend on the private records",
)


def options_of(spec: Spec) -> FrozenMap:
    """The options of the model that its factory is given. The spec has a model."""
    assert spec.model is not None
    return FrozenMap({key: value for key, value in spec.model.options.items() if key != KEY})


def started(spec: Spec, factory: ModelFactory, recorded: Facts | None) -> tuple[ModelFactory, str | None]:
    """The factory whose models start from the file that the spec names, with the file's digest; without one, as it is.

    recorded: the facts that a result recorded, whose digest stands where the file is no longer at hand.

    Raises ``DataError`` where the file cannot be read, ``ValueError`` where it holds another model's weights.
    """
    path = path_of(spec)
    if path is None:
        return factory, None
    try:
        made = FromFile(factory, path)
    except DataError:
        if recorded is None or recorded.initial_weights is None:
            raise
        return factory, recorded.initial_weights
    return made, made.digest


def path_of(spec: Spec) -> Path | None:
    """The file of initial weights that a spec names; None where it names none."""
    initial = None if spec.model is None else spec.model.get(KEY)
    return None if initial is None else Path(spec.directory) / str(initial["path"])


def from_file(model: ModelFactory | None) -> bool:
    """Whether a factory's models start from a file that was read."""
    return isinstance(model, FromFile)


def assumed_public(outcomes: Iterable[Outcome], spec: Spec) -> Iterator[Outcome]:
    """The outcomes; upper bounds on the mechanism as declared with the assumption, where the spec names a file."""
    named = path_of(spec) is not None
    for outcome in outcomes:
        if named and isinstance(outcome, Finding) and outcome.bound == "upper" and outcome.scope.pipeline == "declared":
            yield replace(outcome, assumptions=(*outcome.assumptions, PUBLIC))
        else:
            yield outcome
