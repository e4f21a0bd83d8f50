"""Check a plugin's model against the data before training, with errors that name the layer and the shape."""

from __future__ import annotations

import torch

from dpspec.contract import Facts, ModelError, ModelFactory
from dpspec.training.gradients.flat_model import current_layer, require_uncoupled
from dpspec.training.gradients.memory import ran_out

#: Exceptions of forward passes with wrong shapes or types.
_UNFIT = (RuntimeError, ValueError, TypeError, IndexError)


def check_model(factory: ModelFactory, facts: Facts) -> None:
    """Build the model and run it on one zero record. torch's random generators are restored.

    Raises ``ModelError`` if a layer has no per-example gradients or is random (dropout), the model rejects a record of
    the data's shape, or it does not return one number per class.
    """
    shape = facts.shape or (facts.features,)
    kind = torch.float32 if facts.vocabulary is None else torch.int64
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = factory.build(0).eval()
        require_uncoupled(model)
        with current_layer(model) as describe_layer:
            try:
                out = model(torch.zeros((1, *shape), dtype=kind))
            except _UNFIT as error:
                if ran_out(error):
                    raise
                raise ModelError(
                    f"the model rejects a record of shape {_shape(shape)}: {describe_layer()}: {_first_line(error)}; "
                    "build the model for `facts.shape`, or change the `shape` of the data"
                ) from error
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != 1 or out.shape[1] < facts.classes:
        given = _shape(out.shape) if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise ModelError(
            f"the model returns {given} for one record, but training needs one number for each of "
            f"{facts.classes} classes, {_shape((1, facts.classes))}; "
            "end the model with a Flatten and a layer with `facts.classes` outputs"
        )


def _shape(sizes: tuple[int, ...] | torch.Size) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
