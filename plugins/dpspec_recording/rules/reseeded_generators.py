"""Whether the generators of noise and batches get new seeds during the training.

The mistake: a seed that follows from the weights, or from the records, determines the next noise::

    torch.manual_seed(hash_of(model))
    optimizer.step()                       # private
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.json_records import Count

#: The type of a device, and a seed.
_Seeds: TypeAlias = set[tuple[str, int]]

#: Seeds of a training with a new generator in each step are kept up to this number of steps.
_MOST_SEEDS = 100_000

RULE = Rule(
    name="reseeded-generators",
    summary="a generator of torch got another seed between two steps, and noise or batches follow",
    why="Who knows the weights, the records or the number of the step computes a seed that follows from them, and with "
    "it the noise.",
    fix="Seed once, before the first step. Accept if each seed comes from the system, as by torch.seed().",
    code="dpspec_recording.rules.reseeded_generators:ReseededGenerators",
)


@dataclass(frozen=True, kw_only=True)
class NewSeeds:
    """The numbers of steps whose noise and whose batch come from a generator with a seed that no earlier step had."""

    noise: Count
    batches: Count


class ReseededGenerators(TrainingRule[NewSeeds]):
    kind = NewSeeds

    def __init__(self) -> None:
        self._private: Any = None
        self._sampler: Any = None
        self._noise: _Seeds = set()
        self._batches: _Seeds = set()
        self._new_noise = self._new_batches = 0

    def start(self, setup: RuleSetup) -> None:
        from dpspec_recording.watching.generators import drawing_sampler

        self._private, self._sampler = setup.private_optimizer, drawing_sampler(setup.loader)

    def after_step(self, step: RuleStep) -> None:
        """Compare the seeds with the seeds of all steps before. Only traced steps of a loop show them."""
        from dpspec_recording.watching.generators import generator_of_batches, generator_of_noise

        noise = step.noise_generators if self._private is None else (generator_of_noise(self._private),)
        drawn = (generator_of_batches(self._sampler),) if self._sampler is not None else ()
        self._new_noise += _add(self._noise, noise)
        self._new_batches += _add(self._batches, (*step.batch_generators, *drawn))

    def facts(self) -> NewSeeds:
        return NewSeeds(noise=self._new_noise, batches=self._new_batches)

    @staticmethod
    def caution(facts: NewSeeds, run: RuleRun) -> str:
        counts = {"noise": facts.noise, "batches": facts.batches}
        reseeded = [f"{count} steps of the {drawn}" for drawn, count in counts.items() if count]
        if not reseeded:
            return ""
        return (
            f"A generator of torch had a new seed at {' and '.join(reseeded)}: does each seed come from the system, "
            "and not from weights, records, a counter or the time?"
        )


def _add(seeds: _Seeds, generators: Collection[Any]) -> bool:
    """Add the seeds of generators; whether one is new and not among the first."""
    present = {(generator.device.type, generator.initial_seed()) for generator in generators}
    is_new = bool(seeds) and not present <= seeds
    if len(seeds) < _MOST_SEEDS:
        seeds |= present
    return is_new
