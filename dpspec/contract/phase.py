"""A phase of a mechanism that trains in steps: its options, and the numbers that everybody reads off them, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpspec.contract.frozen import FrozenMap, Json

Scheme: TypeAlias = Literal["poisson", "truncated-poisson", "fixed", "full", "shuffled", "random-allocation"]

#: What is drawn into a batch: records, or users with all of theirs.
Drawn: TypeAlias = Literal["record", "user"]


@dataclass(frozen=True, kw_only=True)
class SchemeOptions:
    """A sampling scheme in a phrase, which of rate, batch_size, max_batch and epoch_steps it ``takes``, and which other
    options it ``may`` have."""

    says: str
    takes: tuple[str, ...] = ()
    may: tuple[str, ...] = ()


#: Every scheme, from which the fragment ``SAMPLING`` is made. How batches are drawn is
#: ``training/loop/samplers.py``, what is tested of them ``stats/conformance/sampling/checks.py``. Mechanisms name the
#: schemes that their theorems cover, so that a new one is refused by all others.
SCHEMES: Mapping[Scheme, SchemeOptions] = {
    "poisson": SchemeOptions(says="every record enters with probability rate", takes=("rate",)),
    "truncated-poisson": SchemeOptions(
        says="as poisson, and where more than max_batch records enter, a uniformly random subset of max_batch of them "
        "is kept",
        takes=("rate", "max_batch"),
    ),
    "fixed": SchemeOptions(says="a uniformly random subset of batch_size records", takes=("batch_size",)),
    "full": SchemeOptions(says="every record, every step"),
    "shuffled": SchemeOptions(
        says="every epoch takes all records in a new random order, batch_size at a time, its last batch being what is "
        "left; bounded without amplification, for adjacency zero-out alone",
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


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How each step draws its batch, as the fragment ``SAMPLING`` describes it.

    rate: the probability, in (0, 1], with which each record enters a batch (``poisson``), before it is truncated
        (``truncated-poisson``); else None.
    batch_size: the number of records in every batch, at least 1 (``fixed``, ``shuffled``); else None.
    max_batch: the number of records in a batch at most, at least 1 (``truncated-poisson``); else None.
    unit: what enters a batch, and is clipped: records, or users (``poisson`` alone); ``rate`` is that of one.
    records_per_user: of a user who is drawn, so many records at most are averaged, at least 1; None of records.
    epoch_steps: the number of steps, at least 1, in exactly one of which each record is (``random-allocation``); else
        None.
    batches_per_epoch: in so many of these, each record is, if not in one; at least 1 and at most ``epoch_steps``.
    """

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
        """From the block ``sampling`` of a mechanism."""
        rate, batch_size, max_batch = block.get("rate"), block.get("batch_size"), block.get("max_batch")
        most = block.get("records_per_user")
        epoch_steps = block.get("epoch_steps")
        return cls(
            scheme=block["scheme"],
            rate=None if rate is None else float(rate),
            batch_size=None if batch_size is None else int(batch_size),
            max_batch=None if max_batch is None else int(max_batch),
            unit=block.get("unit") or "record",
            records_per_user=None if most is None else int(most),
            epoch_steps=None if epoch_steps is None else int(epoch_steps),
            batches_per_epoch=int(block.get("batches_per_epoch") or 1),
        )

    @property
    def of_users(self) -> bool:
        """Whether users are drawn, and what one of them adds is clipped as a whole."""
        return self.unit == "user"

    def inclusion(self, records: int | None = None) -> float:
        """The probability, in (0, 1], with which one of ``records`` enters a batch, before that is truncated.

        Raises ``ValueError`` where batches have a fixed size and ``records`` is not given.
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
    """Steps that share their parameters: a mechanism's options for them, its own first, with typed attributes.

    It is the mapping of these options, so that any key of a mechanism's own can be read too. A typed attribute raises
    ``KeyError`` where the mechanism has no such key.

    >>> phase = Phase({"steps": 100, "noise_multiplier": 1, "sampling": {"scheme": "fixed", "batch_size": 50}})
    >>> phase.rate(1000), phase.noise_multiplier, phase["sampling"]["batch_size"]
    (0.05, 1.0, 50)
    """

    __slots__ = ()

    @classmethod
    def of(cls, options: Mapping[str, Json]) -> Phase:
        """These options as a phase; a phase as it is."""
        return options if isinstance(options, Phase) else cls(options)

    @classmethod
    def all_of(cls, options: Mapping[str, Json]) -> tuple[Phase, ...]:
        """The phases, in order, of a mechanism's ``options``: one where it names none. Made once for a frozen map."""
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
        """The number of updates, at least 1."""
        return int(self["steps"])

    @property
    def sampling(self) -> Sampling:
        """How each step draws its batch."""
        block = self["sampling"]
        return block.typed(Sampling.of) if isinstance(block, FrozenMap) else Sampling.of(block)

    @property
    def clip_norm(self) -> float:
        """The largest l2 norm of a record's contribution, > 0."""
        return float(self["clip_norm"])

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise on a sum, in units of the clip norm, >= 0."""
        return float(self["noise_multiplier"])

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on a sum, per parameter: noise_multiplier * clip_norm."""
        return self.noise_multiplier * self.clip_norm

    @property
    def noise(self) -> str:
        """The law of the noise: ``gaussian`` where the phase names none, or ``laplace``."""
        return str(self.get("noise", "gaussian"))

    @property
    def noiseless(self) -> bool:
        """Whether no noise is added at all."""
        return self.noise_multiplier == 0.0

    @property
    def clipping_scheme(self) -> str:
        """How contributions are clipped: ``flat`` where the phase says nothing, ``per-layer`` or ``truncated``."""
        return str((self.get("clipping") or {}).get("scheme", "flat"))

    def rate(self, records: int | None = None) -> float:
        """The probability, in (0, 1], with which one of ``records`` enters a batch.

        Poisson: the declared rate, also where batches are truncated afterwards. Batches of a fixed size: that size over
        ``records``, at most 1. Random allocation: the batches of an epoch that a record is in, over the epoch's steps.
        Full: 1. Raises ``ValueError`` where batches have a fixed size and ``records`` is not given.
        """
        return self.sampling.inclusion(records)

    def expected_batch(self, records: int) -> float:
        """The mean number of records in a batch: the rate times ``records``."""
        return self.rate(records) * records

    def replace(self, **options: Json) -> Phase:
        """The phase with some options changed or added."""
        return Phase({**self, **options})
