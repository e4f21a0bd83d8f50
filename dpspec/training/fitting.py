"""Whether a model takes the records that it is to be trained on: tried on one before the first trial.

A plugin's model may be of any shape. What torch says of sizes that do not fit names neither the data nor the layer, and
comes in the middle of a trial.
"""

from __future__ import annotations

import torch

from dpspec.contract import Facts, ModelError, ModelFactory
from dpspec.training.gradients.flat_model import entered_layers, require_uncoupled
from dpspec.training.gradients.memory import ran_out

#: What forward passes raise for tensors of other shapes and types than they take.
_UNFIT = (RuntimeError, ValueError, TypeError, IndexError)


def require_fitting(factory: ModelFactory, facts: Facts) -> None:
    """Build the model, look at its layers, give it one record of zeros; torch's generators are left as they were.

    Raises ``ModelError`` for layers that have no per-example gradients or that no seed decides, as dropout, whatever
    the backend; where it does not take a record of the data's shape; and where it gives something else than a number
    for each class.
    """
    shape = facts.shape or (facts.features,)
    kind = torch.float32 if facts.vocabulary is None else torch.int64
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = factory.build(0).eval()
        require_uncoupled(model)
        with entered_layers(model) as at_work:
            try:
                out = model(torch.zeros((1, *shape), dtype=kind))
            except _UNFIT as error:
                if ran_out(error):
                    raise
                raise ModelError(
                    f"the model does not take a record of the data, of shape {_shape(shape)}: {at_work()} says: "
                    f"{_first_line(error)}; build it for `facts.shape`, or give the data another `shape`"
                ) from error
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != 1 or out.shape[1] < facts.classes:
        given = _shape(out.shape) if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise ModelError(
            f"the model gives {given} for one record, where training needs a number for each of "
            f"{facts.classes} classes, {_shape((1, facts.classes))}; "
            "let its last layer have `facts.classes` outputs, after a Flatten"
        )


def _shape(sizes: tuple[int, ...] | torch.Size) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
