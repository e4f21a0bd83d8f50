"""Were batches drawn as declared? Their sizes, how often each record was drawn, and what batches have in common."""

from dpspec.stats.conformance.sampling.allocations import size_spread
from dpspec.stats.conformance.sampling.epochs import EpochLog
from dpspec.stats.conformance.sampling.joint import alike, closest
from dpspec.stats.conformance.sampling.overlaps import common_divergence, overlap, overlap_at_a_step
from dpspec.stats.conformance.sampling.records import excess, most_inclusions, record_excess, record_spread
from dpspec.stats.conformance.sampling.remembered import Numbered, RememberedBatches, foreseen, references
from dpspec.stats.conformance.sampling.sizes import BatchSize, batch_variance, inclusions, mean_size, size_variance

__all__ = [
    "BatchSize",
    "EpochLog",
    "Numbered",
    "RememberedBatches",
    "alike",
    "batch_variance",
    "closest",
    "common_divergence",
    "excess",
    "foreseen",
    "inclusions",
    "mean_size",
    "most_inclusions",
    "overlap",
    "overlap_at_a_step",
    "record_excess",
    "record_spread",
    "references",
    "size_spread",
    "size_variance",
]
