"""Typed options of a phase of an iterative mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from dpspec.contract.frozen import FrozenMap, Json

Scheme: TypeAlias = Literal["poisson", "truncated-poisson", "fixed", "full", "shuffled", "random-allocation"]

#: Sampling unit: records, or users with all their records.
Drawn: TypeAlias = Literal["record", "user"]


@dataclass(frozen=True, kw_only=True)
class SchemeOptions:
    """A scheme: its phrase, and its required and optional options.

    independent: whether each record enters each batch independently of all others and of all other steps, with the same
    probability at every step. Mechanisms accept such a scheme by ``Sampling.INDEPENDENT``, without its own theorem.
    """

    says: str
    takes: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    independent: bool = False


#: All schemes, the source of the fragment ``SAMPLING``. Samplers are in ``training/loop/samplers.py``, tests in
#: ``stats/conformance/table.py``. Mechanisms list the schemes that their theorems cover, so new schemes are
#: rejected by default.
SCHEMES: Mapping[Scheme, SchemeOptions] = {
    "poisson": SchemeOptions(says="every record enters with probability rate", takes=("rate",), independent=True),
    "truncated-poisson": SchemeOptions(
        says="as poisson, and where more than max_batch records enter, a uniformly random subset of max_batch of them "
        "is kept",
        takes=("rate", "max_batch"),
    ),
    "fixed": SchemeOptions(says="a uniformly random subset of batch_size records", takes=("batch_size",)),
    "full": SchemeOptions(says="every record, every step", independent=True),
    "shuffled": SchemeOptions(
        says="every epoch takes all records in a new random order, batch_size at a time, its last batch being what is "
        "left; bounded without amplification, for adjacency zero-out and replace-one",
        takes=("batch_size",),
    ),
    "random-allocation": SchemeOptions(
        says="in every epoch of epoch_steps steps each record is in exactly one batch, or in batches_per_epoch, "
        "uniformly and independently of all others and of other epochs (balls-in-bins); steps are a whole number of "
        "epochs",
        takes=("epoch_steps",),
        may=("batches_per_epoch",),
    ),
}


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


class Phase(FrozenMap):
    """Steps with the same parameters: a mapping of the mechanism's options for them with typed attributes.

    A typed attribute raises ``KeyError`` if the mechanism has no such key.

    >>> phase = Phase({"steps": 100, "noise_multiplier": 1, "sampling": {"scheme": "fixed", "batch_size": 50}})
    >>> phase.rate(1000), phase.noise_multiplier, phase["sampling"]["batch_size"]
    (0.05, 1.0, 50)
    """

    __slots__ = ()

    @classmethod
    def of(cls, options: Mapping[str, Json]) -> Phase:
        """Convert options to a phase; a phase is returned unchanged."""
        return options if isinstance(options, Phase) else cls(options)

    @classmethod
    def all_of(cls, options: Mapping[str, Json]) -> tuple[Phase, ...]:
        """Phases of a mechanism's ``options`` in order, at least one; cached for frozen maps."""
        return options.typed(cls._divided) if isinstance(options, FrozenMap) else cls._divided(options)

    @classmethod
    def _divided(cls, options: Mapping[str, Json]) -> tuple[Phase, ...]:
        shared = {key: value for key, value in options.items() if key not in ("phases", "kind")}
        phases = options.get("phases")
        if phases is None:
            return (cls(shared),)
        shared.pop("steps", None)
        return tuple(cls({**shared, **phase}) for phase in phases)

    @property
    def steps(self) -> int:
        """Number of updates, at least 1."""
        return int(self["steps"])

    @property
    def sampling(self) -> Sampling:
        """Sampling of batches."""
        block = self["sampling"]
        return block.typed(Sampling.of) if isinstance(block, FrozenMap) else Sampling.of(block)

    @property
    def clip_norm(self) -> float:
        """Maximum l2 norm of a record's contribution, > 0."""
        return float(self["clip_norm"])

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise on a sum, in units of the clip norm, >= 0."""
        return float(self["noise_multiplier"])

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on a sum per parameter: noise_multiplier * clip_norm."""
        return self.noise_multiplier * self.clip_norm

    @property
    def noise(self) -> str:
        """Noise distribution: ``gaussian`` (default) or ``laplace``."""
        return str(self.get("noise", "gaussian"))

    @property
    def noiseless(self) -> bool:
        """Whether no noise is added."""
        return self.noise_multiplier == 0.0

    @property
    def clipping_scheme(self) -> str:
        """Clipping: ``flat`` (default) or ``truncated``, which ``coordinate_bound`` follows."""
        return str((self.get("clipping") or {}).get("scheme", "flat"))

    def rate(self, records: int | None = None) -> float:
        """Inclusion probability, in (0, 1], of one of ``records``: see :meth:`Sampling.inclusion`."""
        return self.sampling.inclusion(records)

    def expected_batch(self, records: int) -> float:
        """Mean batch size: the rate times ``records``."""
        return self.rate(records) * records

    def replace(self, **options: Json) -> Phase:
        """Copy the phase with changed or added options."""
        return Phase({**self, **options})
