"""The loss of a spec. A plugin's loss is checked before any trial: it must depend on one record alone."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from dpspec.contract import Facts, ModelError
from dpspec.contract.catalog import Offered
from dpspec.contract.providers import RecordLoss
from dpspec.contract.spec import Spec
from dpspec.registry.loader import describe, is_foreign, misbehaved, resolve


def loss_of(spec: Spec, providers: Mapping[str, tuple[str, Offered]], facts: Facts) -> RecordLoss | None:
    """The loss that ``training.loss`` selects, with its options; None for the default.

    Raises:
        ModelError: A plugin's loss fails, or the loss of a record is not its own.
    """
    if "loss" not in providers:
        return None
    from dpspec.training.losses import checked_loss

    _, offered = providers["loss"]
    function: Any = resolve(offered.provider.function)
    if not callable(function):
        raise misbehaved(offered, f"{offered.provider.function} is a {type(function).__name__}, nothing to call")
    loss = partial(function, **{key: value for key, value in spec.training["loss"].items() if key != "kind"})
    if not is_foreign(offered):
        return loss
    try:
        return checked_loss(loss, facts.classes)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the loss fails: {describe(error)}") from error
