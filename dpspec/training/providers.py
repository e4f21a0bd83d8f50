"""The backends that dpspec itself offers, as descriptors: importing this imports neither torch nor numpy."""

from __future__ import annotations

from dpspec.contract.frozen import FrozenMap
from dpspec.contract.providers import CAPABILITIES, Backend

_SAMPLER = {
    "enum": ["poisson", "declared-rate", "shuffled", "weighted"],
    "default": "poisson",
    "description": "Where the data loader of Poisson batches comes from. poisson: make_private turns a loader with a "
    "batch size of records * rate, rounded, into one whose rate is one over its length. declared-rate: a DPDataLoader "
    "with the declared rate, used as it is. shuffled: a loader that shuffles each epoch, used as it is. weighted: one "
    "with a WeightedRandomSampler that balances the classes, used as it is.",
}

BACKENDS: tuple[Backend, ...] = (
    Backend(
        kind="native",
        summary="DP-SGD on torch: per-example gradients, clipped, summed, noised",
        schema={"type": "object", "properties": {}, "additionalProperties": False},
        capabilities=CAPABILITIES,
        trainer="dpspec.training.native:NativeTrainer",
        trial_revision=2,
    ),
    Backend(
        kind="opacus",
        summary="Opacus' PrivacyEngine, as its users call it; needs the extra dpspec[opacus]",
        schema={"type": "object", "properties": {"sampler": _SAMPLER}, "additionalProperties": False},
        capabilities=frozenset({"iterates", "sampling-log", "noise-log", "gradient-canaries"}),
        trainer="dpspec.training.opacus_backend:OpacusTrainer",
        as_declared=FrozenMap({"sampler": "declared-rate", "reduction": "sum"}),
    ),
)
