"""The model of a spec: its factory, its number of parameters and its initial weights.

Every proof of a spec with ``model.initial`` assumes that the weights of the file do not depend on the private records.
``worst-case`` is for attacks: Theorem R5 of ``docs/explanation/proofs/recorded-runs.md``.
"""

import dataclasses
from pathlib import Path
from typing import Any

from dpspec.contract import DataError, Facts, ModelFactory
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.frozen import FrozenMap
from dpspec.contract.spec import Spec
from dpspec.engine.preparing.diagnostics import data_unreadable, model_mismatch
from dpspec.engine.preparing.providers import kinds_with
from dpspec.errors import SpecError
from dpspec.models.weights_file import FromFile
from dpspec.registry.loader import is_foreign, made, misbehaved

#: The key of a model block that core reads and removes from the factory's options.
INITIAL = "initial"

#: Its value if the adversary chooses.
WORST_CASE = "worst-case"


def model_of(
    spec: Spec, offered: Offered, facts: Facts, catalog: Catalog, recorded: Facts | None
) -> tuple[ModelFactory, Facts]:
    """The factory of a spec's model, and ``facts`` with its number of parameters and the digest of its weights.

    ``recorded``: the facts of a result, whose digest counts if the file is missing.
    """
    assert spec.model is not None
    options = FrozenMap({key: value for key, value in spec.model.options.items() if key != INITIAL})
    try:
        if facts.vocabulary is not None and not offered.provider.tokens:
            raise ValueError(
                f"{offered.provider.kind} computes with features, and the records are ids of {facts.vocabulary} "
                f"tokens; models that take them: {kinds_with(catalog.models, 'tokens')}"
            )
        factory: ModelFactory = made(offered, offered.provider.factory, "its factory", options, facts)
        if is_foreign(offered):
            factory = CountedModel(factory, offered)
        facts = dataclasses.replace(facts, parameters=factory.parameters())
    except ValueError as error:
        raise SpecError([model_mismatch(error, ("model",), spec)]) from None
    path = weights_path(spec)
    if path is None:
        return factory, facts
    try:
        from_file = FromFile(factory, path)
    except DataError as error:
        if recorded is None or recorded.initial_weights is None:
            raise SpecError([data_unreadable(error, spec)]) from None
        return factory, dataclasses.replace(facts, initial_weights=recorded.initial_weights)
    except ValueError as error:
        raise SpecError([model_mismatch(error, ("model", INITIAL, "path"), spec)]) from None
    return from_file, dataclasses.replace(facts, initial_weights=from_file.digest)


def weights_path(spec: Spec) -> Path | None:
    initial = None if spec.model is None else spec.model.get(INITIAL)
    return None if initial is None or chosen_weights(spec) else Path(spec.directory) / str(initial["path"])


def chosen_weights(spec: Spec) -> bool:
    return spec.model is not None and spec.model.get(INITIAL) == WORST_CASE


class CountedModel:
    """A plugin's :class:`~dpspec.contract.ModelFactory` whose modules must have the declared number of parameters.

    Bounds, canaries and memory depend on this number, which a spec's check reads before any module is built.
    """

    def __init__(self, factory: ModelFactory, offered: Offered) -> None:
        self._factory, self._offered = factory, offered

    def parameters(self) -> int:
        return self._factory.parameters()

    def build(self, seed: int) -> Any:
        module = self._factory.build(seed)
        declared, trainable = self.parameters(), sum(p.numel() for p in module.parameters() if p.requires_grad)
        if trainable != declared:
            how = f"parameters() returns {declared}, and the module of build() has {trainable} trainable parameters"
            raise misbehaved(self._offered, how)
        return module
