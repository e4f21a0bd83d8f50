"""Typed options of a phase of an iterative mechanism."""

from __future__ import annotations

from collections.abc import Mapping

from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.sampling import Sampling

#: The name of discrete Gaussian noise, on the grid of the contributions.
DISCRETE = "discrete-gaussian"


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
        """Noise distribution: ``gaussian`` (default), ``laplace`` or ``discrete-gaussian``."""
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
