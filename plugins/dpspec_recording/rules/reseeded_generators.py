"""Whether the generators of noise and batches get new seeds during the training.

The mistake: a seed that follows from the weights, or from the records, determines the next noise::

    torch.manual_seed(hash_of(model))
    optimizer.step()                       # private
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.json_records import Count

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
        self._generators: Any = None
        self._noise, self._batches = _Seeds(), _Seeds()
        self._new_noise = self._new_batches = 0

    def start(self, setup: RuleSetup) -> None:
        from dpspec_recording.watching import generators

        self._generators = generators  # an import at each step takes longer than its seeds
        self._private, self._sampler = setup.private_optimizer, generators.drawing_sampler(setup.loader)

    def after_step(self, step: RuleStep) -> None:
        """Compare the seeds with the seeds of all steps before. Only traced steps of a loop show them."""
        drawing, of_batches = self._generators, step.batch_generators
        noise = step.noise_generators if self._private is None else (drawing.generator_of_noise(self._private),)
        if self._sampler is not None:
            of_batches = *of_batches, drawing.generator_of_batches(self._sampler)
        self._new_noise += self._noise.add(noise)
        self._new_batches += self._batches.add(of_batches)

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


class _Seeds:
    """The seeds of all steps, each with the type of its device."""

    def __init__(self) -> None:
        self._of_steps: set[tuple[str, int]] = set()
        self._last: list[tuple[Any, int]] = []  # generators with seeds that are kept

    def add(self, generators: Collection[Any]) -> bool:
        """Add the seeds of generators; whether one is new and not among the first."""
        now = [(generator, generator.initial_seed()) for generator in generators]
        if now == self._last:  # in almost all steps: names of devices take longer
            return False
        present = {(generator.device.type, seed) for generator, seed in now}
        is_new = bool(self._of_steps) and not present <= self._of_steps
        if len(self._of_steps) < _MOST_SEEDS:
            self._of_steps |= present
        self._last = now if present <= self._of_steps else []
        return is_new
