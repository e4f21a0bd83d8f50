"""The sampling schemes: their names, options and code, and a mechanism's ``sampling`` block with typed options.

A scheme is one class of ``dpspec.sampling``, which its descriptor in ``SCHEMES`` names, so that it is loaded on use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from dpspec.contract.frozen import Json
from dpspec.contract.providers import TrialProvider

#: Name of a sampling scheme, a key of ``SCHEMES``.
Scheme: TypeAlias = str

#: Sampling unit: records, or users with all their records.
Drawn: TypeAlias = Literal["record", "user"]


#: JSON Schema of each option of the schemes; the fragment ``SAMPLING`` adds the schemes that have it.
OPTIONS: dict[str, dict[str, Json]] = {
    "rate": {
        "type": "number",
        "minimum": 1e-30,
        "maximum": 1,
        "description": "Probability with which each record enters a batch, a public constant",
    },
    "batch_size": {"type": "integer", "minimum": 1, "description": "Number of records in every batch"},
    "max_batch": {"type": "integer", "minimum": 1, "description": "Largest number of records in a batch"},
    "epoch_steps": {
        "type": "integer",
        "minimum": 1,
        "maximum": 10**7,
        "description": "Number of steps of an epoch; each record is in exactly one step",
    },
    "batches_per_epoch": {
        "type": "integer",
        "minimum": 1,
        "maximum": 10**7,
        "description": "Number of batches per record and epoch, at most epoch_steps; default 1",
    },
}


@dataclass(frozen=True, kw_only=True)
class SchemeOptions:
    """A scheme: module and name of its class, its phrase, and its required and optional options, of ``OPTIONS``.

    independent: whether each record enters each batch independently of all others and of all other steps, with the same
    probability at every step. Mechanisms accept such a scheme by ``Sampling.INDEPENDENT``, without its own theorem.
    """

    code: str
    says: str
    takes: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    independent: bool = False


@dataclass(frozen=True, kw_only=True)
class SamplingKind(TrialProvider):
    """A third-party sampling scheme for ``mechanism.sampling.scheme``, from the hook ``dpspec_sampling_schemes``.

    Attributes:
        summary: Phrase for the reference of specs, such as ``every record at the last step of each epoch``.
        code: Names a subclass of ``dpspec.sampling.SamplingScheme`` as ``module:Class``: sampler, moments, names of its
            checks, and a ``Theory``.
        takes: Its required options, names in ``OPTIONS``; a rate or size of a batch has its meaning there.
        may: Its optional ones.
    """

    code: str
    takes: tuple[str, ...] = ()
    may: tuple[str, ...] = ()


#: All schemes. Mechanisms list the schemes that their theorems cover, so new schemes are rejected by default.
SCHEMES: dict[Scheme, SchemeOptions] = {
    "poisson": SchemeOptions(
        code="dpspec.sampling.poisson:Poisson",
        says="every record enters with probability rate",
        takes=("rate",),
        independent=True,
    ),
    "truncated-poisson": SchemeOptions(
        code="dpspec.sampling.poisson:TruncatedPoisson",
        says="as poisson, and where more than max_batch records enter, a uniformly random subset of max_batch of them "
        "is kept",
        takes=("rate", "max_batch"),
    ),
    "fixed": SchemeOptions(
        code="dpspec.sampling.fixed:FixedSize",
        says="a uniformly random subset of batch_size records",
        takes=("batch_size",),
    ),
    "full": SchemeOptions(code="dpspec.sampling.poisson:Full", says="every record, every step", independent=True),
    "shuffled": SchemeOptions(
        code="dpspec.sampling.shuffled:Shuffled",
        says="every epoch takes all records in a new random order, batch_size at a time, its last batch being what is "
        "left; bounded without amplification, for adjacency zero-out and replace-one",
        takes=("batch_size",),
    ),
    "random-allocation": SchemeOptions(
        code="dpspec.sampling.random_allocation:RandomAllocation",
        says="in every epoch of epoch_steps steps each record is in exactly one batch, or in batches_per_epoch, "
        "uniformly and independently of all others and of other epochs (balls-in-bins); steps are a whole number of "
        "epochs",
        takes=("epoch_steps",),
        may=("batches_per_epoch",),
    ),
}


#: The names of dpspec's own schemes, which no plugin may replace.
OWN_SCHEMES = frozenset(SCHEMES)


def offer_schemes(kinds: Mapping[str, SamplingKind]) -> bool:
    """Make these third-party schemes, and no others, available to specs; return whether anything changed."""
    offered = {
        kind: SchemeOptions(code=scheme.code, says=scheme.summary, takes=scheme.takes, may=scheme.may)
        for kind, scheme in kinds.items()
        if kind not in OWN_SCHEMES
    }
    current = {kind: options for kind, options in SCHEMES.items() if kind not in OWN_SCHEMES}
    if offered == current:
        return False
    for kind in current:
        del SCHEMES[kind]
    SCHEMES.update(offered)
    return True


def poisson_sampling(rate: float) -> dict[str, Json]:
    """The ``sampling`` block of Poisson batches at a rate in (0, 1), or of full batches at 1."""
    return {"scheme": "poisson", "rate": rate} if rate < 1.0 else {"scheme": "full"}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling of batches, as in the fragment ``SAMPLING``; None for options of other schemes.

    Attributes:
        rate: Inclusion probability in (0, 1] of each record, before truncation (``poisson``, ``truncated-poisson``).
        batch_size: Number of records per batch, at least 1 (``fixed``, ``shuffled``).
        max_batch: Maximum number of records per batch, at least 1 (``truncated-poisson``).
        unit: What enters a batch and is clipped: records, or users (only ``poisson``), to which ``rate`` then applies.
        records_per_user: Maximum number of averaged records of a drawn user, at least 1.
        epoch_steps: Number of steps per epoch, at least 1 (``random-allocation``).
        batches_per_epoch: Number of batches per record and epoch, from 1 to ``epoch_steps``.
    """

    #: Schemes whose batches contain each record independently of all others.
    INDEPENDENT: ClassVar[tuple[Scheme, ...]] = tuple(name for name, options in SCHEMES.items() if options.independent)

    scheme: Scheme
    rate: float | None = None
    batch_size: int | None = None
    max_batch: int | None = None
    unit: Drawn = "record"
    records_per_user: int | None = None
    epoch_steps: int | None = None
    batches_per_epoch: int = 1

    @classmethod
    def of(cls, block: Mapping[str, Json]) -> Sampling:
        """Read a mechanism's ``sampling`` block."""
        rate = None if block.get("rate") is None else float(block["rate"])
        counts = ("batch_size", "max_batch", "records_per_user", "epoch_steps", "batches_per_epoch")
        integers = {name: int(block[name]) for name in counts if block.get(name) is not None}
        return cls(scheme=block["scheme"], rate=rate, unit=block.get("unit") or "record", **integers)

    @property
    def is_poisson(self) -> bool:
        """Whether each record enters each batch independently at ``rate``."""
        return self.scheme == "poisson"

    @property
    def is_full(self) -> bool:
        """Whether each batch contains all records."""
        return self.scheme == "full"

    @property
    def is_fixed(self) -> bool:
        """Whether each batch is a uniformly random subset of ``batch_size`` records."""
        return self.scheme == "fixed"

    @property
    def is_shuffled(self) -> bool:
        """Whether each epoch takes all records in a random order."""
        return self.scheme == "shuffled"

    @property
    def is_independent(self) -> bool:
        """Whether each record enters each batch independently of all others."""
        return self.scheme in self.INDEPENDENT

    @property
    def of_users(self) -> bool:
        """Whether users are drawn and contribute one clipped vector each."""
        return self.unit == "user"

    def inclusion(self, records: int | None = None) -> float:
        """Inclusion probability, in (0, 1], of one of ``records``, before truncation.

        Raises:
            ValueError: Batches have a fixed size and ``records`` is missing.
        """
        if self.rate is not None:
            return self.rate
        if self.epoch_steps is not None:
            return self.batches_per_epoch / self.epoch_steps
        if self.batch_size is None:
            return 1.0
        if records is None:
            raise ValueError(f"the rate of {self.scheme} sampling needs the number of records: give records")
        return min(1.0, self.batch_size / records)
