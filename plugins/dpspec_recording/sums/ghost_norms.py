"""The layers whose gradient norms Opacus computes otherwise than its second backward pass sums their gradients.

Ghost clipping takes the norm of a record's gradient from a formula of the layer's class, and its sum from autograd. Of
Opacus' formulas these give other norms than autograd has: ``EmbeddingBag`` counts an index that a record repeats once,
convolutions ignore ``padding_mode`` and pad with zeros, and embeddings ignore ``scale_grad_by_freq``, with which
a record changes the gradients of others. Layers without a formula have gradients of single records by autograd.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn


def unverified_norms(model: Any) -> Iterator[str]:
    """The names and classes of trained layers whose norms may be too small.

    Args:
        model: Opacus' wrapper or hooks with fast gradient clipping.
    """
    norms = model.NORM_SAMPLERS if model.use_ghost_clipping else {}
    formulas = norms if model.force_functorch else {**model.GRAD_SAMPLERS, **norms}
    kind_of = getattr(model, "_get_module_type", type)  # sharded layers are of derived classes
    for name, layer in model._module.named_modules():
        formula = formulas.get(kind_of(layer))
        if formula is not None and any(p.requires_grad for p in layer.parameters(recurse=False)):
            of_opacus = getattr(formula, "__module__", "").partition(".")[0] == "opacus"
            if not of_opacus or _has_other_norm(layer):
                yield f"{name or 'model'} ({kind_of(layer).__name__})"


def _has_other_norm(layer: nn.Module) -> bool:
    pads = getattr(layer, "padding_mode", "zeros") != "zeros"
    return isinstance(layer, nn.EmbeddingBag) or pads or bool(getattr(layer, "scale_grad_by_freq", False))
