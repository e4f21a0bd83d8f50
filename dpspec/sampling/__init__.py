"""Sampling schemes: how a step draws the records of its batch, and what follows for training, tests and bounds.

A scheme is one class, in one module:

>>> from dpspec.contract import Phase
>>> from dpspec.sampling import sampler_of, scheme_of
>>> sampler = sampler_of({"scheme": "fixed", "batch_size": 20}, records=100)
>>> sampler.inclusion, sampler.covariance() < 0.0, "exact_sizes" in sampler.checks
(0.2, True, True)
>>> phase = Phase({"steps": 10, "noise_multiplier": 1.0, "sampling": {"scheme": "fixed", "batch_size": 20}})
>>> scheme_of(phase).theory.source
'Ganesh 2024, Theorem 3.3'

To add a scheme, write a module like ``fixed.py`` and its descriptor in ``dpspec.contract.sampling.SCHEMES``. torch,
numpy and the accountant are imported on use. Batches are secret; names and options are public.
"""

from dpspec.renames import old_names
from dpspec.sampling.scheme import Composed as Composed
from dpspec.sampling.scheme import EpochSampling as EpochSampling
from dpspec.sampling.scheme import SamplingScheme as SamplingScheme
from dpspec.sampling.scheme import Theory as Theory
from dpspec.sampling.scheme import sampler_of as sampler_of
from dpspec.sampling.scheme import scheme_named as scheme_named
from dpspec.sampling.scheme import scheme_of as scheme_of

#: Old names work for two minor versions.
__getattr__ = old_names(__name__)
