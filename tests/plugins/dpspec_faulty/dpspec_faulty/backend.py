"""dpspec's own loop with one part replaced: the noise, the contributions of a batch, or the sampler."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from dpspec.accounting import joint_noise_multiplier
from dpspec.contract import TrainingJob
from dpspec.sampling import SamplingScheme
from dpspec.sampling.poisson import Poisson, TruncatedPoisson
from dpspec.sampling.shuffled import Shuffled
from dpspec.training.loop.native import ClipNorms, Parts, Schedule, ScheduledPhase, parts_of, train_with
from dpspec_faulty import FAULTS, batches, gradients, noise, trainer_of

Break = Callable[[TrainingJob, Parts], Parts]


def _noise(broken: Callable[[object], object]) -> Break:
    return lambda job, parts: replace(parts, noise=broken(parts.noise))


def _by_step(factor: Callable[[int, int], float]) -> Break:
    """``factor`` of the noise, by the step and the number of steps."""
    return lambda job, parts: replace(
        parts, noise=noise.NoiseByStep(parts.noise, lambda step: factor(step, parts.schedule.total))
    )


def _times(factor: float) -> Break:
    return _by_step(lambda step, steps: factor)


def _contributions(broken: Callable[[TrainingJob], gradients.BrokenContributions]) -> Break:
    return lambda job, parts: replace(parts, contributions=broken(job))


def _without_clip_norm(job: TrainingJob, parts: Parts) -> Parts:
    (clip_norm,) = {phase.clip_norm for phase in parts.schedule.phases}
    return _times(1.0 / clip_norm)(job, parts)


class SilentCounts(ClipNorms):
    def noise(self, std: float) -> float:
        return 0.0


def _not_raised(job: TrainingJob, parts: Parts) -> Parts:
    """The noise multiplier that an accountant charges, of Opacus' issue 757 in the other direction."""
    (phase,) = parts.schedule.phases
    assert phase.adaptive is not None
    joint = joint_noise_multiplier(phase.noise_multiplier, phase.adaptive.count_std)
    return _times(joint / phase.noise_multiplier)(job, parts)


def _batches(broken: Callable[[ScheduledPhase], SamplingScheme]) -> Break:
    def changed(job: TrainingJob, parts: Parts) -> Parts:
        phases = tuple(replace(phase, sampler=broken(phase)) for phase in parts.schedule.phases)
        return replace(parts, schedule=Schedule(phases))

    return changed


def _pieces_of_an_epoch(phase: ScheduledPhase) -> SamplingScheme:
    """As long as the declared batches are on average."""
    return Shuffled(phase.sampler.records, max(1, round(phase.sampler.records * phase.sampler.inclusion)))


def _without_cap(phase: ScheduledPhase) -> SamplingScheme:
    declared = phase.sampler
    return Poisson(declared.records, declared.rate) if isinstance(declared, TruncatedPoisson) else declared


def _sizes(job: TrainingJob) -> list[int]:
    return [parameter.numel() for parameter in job.model.parameters()]


BROKEN: Mapping[str, Break] = {
    "none": lambda job, parts: parts,
    "no-noise": _times(0.0),
    "tenth-noise": _times(0.1),
    "wrong-batch-size": _times(0.25),
    "noise-without-clip-norm": _without_clip_norm,
    "noise-reused": _noise(noise.ReusedNoise),
    "noise-seeded-alike": _noise(noise.SeededAlike),
    "layers-seeded-alike": lambda job, parts: replace(parts, noise=noise.LayersSeededAlike(_sizes(job))),
    "first-step-without-noise": _by_step(lambda step, steps: float(step != 1)),
    "last-step-without-noise": _by_step(lambda step, steps: float(step != steps)),
    "alternating-noise": _by_step(lambda step, steps: 0.25 if step % 2 else 1.39),
    "tenth-step-tenth-noise": _by_step(lambda step, steps: 1.0536 if step % 10 else 0.1),
    "clip-after-averaging": _contributions(gradients.ClipAfterAveraging),
    "clip-per-layer": _contributions(gradients.ClipPerLayer),
    "layer-unclipped": _contributions(gradients.LayerUnclipped),
    "clip-accumulated-sum": _contributions(gradients.ClipAccumulatedSum),
    "augmented-copies": _contributions(gradients.AugmentedCopies),
    "private-normalisation": _contributions(gradients.PrivateNormalisation),
    "large-batch-once": _batches(lambda phase: batches.LargeOnce(phase.sampler, phase.steps)),
    "shuffled": _batches(_pieces_of_an_epoch),
    "cap-forgotten": _batches(_without_cap),
    "same-steps": _batches(lambda phase: batches.SameSteps(phase.sampler)),
    "counts-without-noise": lambda job, parts: replace(parts, clip_norms=SilentCounts(parts.schedule, job)),
    "noise-not-raised": _not_raised,
    "last-batch-dropped": _batches(lambda phase: batches.LastBatchDropped(phase.sampler)),
}


class FaultyTrainer:
    """Trains with ``fault``, or else with the fault in ``job.options``."""

    def __init__(self, fault: str | None = None) -> None:
        self._fault = fault

    def train(self, job: TrainingJob) -> None:
        """Run the job with the fault; raises ``ValueError`` for an unknown fault."""
        fault = self._fault or str(job.options.get("fault", "none"))
        if fault not in BROKEN:
            raise ValueError(f"fault must be one of {', '.join(BROKEN)}, got {fault!r}")
        train_with(job, BROKEN[fault](job, parts_of(job)))


#: One trainer per fault, by the name that its descriptor has.
globals().update({trainer_of(fault): partial(FaultyTrainer, fault) for fault in FAULTS})
