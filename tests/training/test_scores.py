"""What auditors keep is right for a right run. Statistical tests reject at 1e-6, with fixed seeds."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2
from support.phases import phase_of

from dpspec.contract import FrozenMap
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.loop.native import NativeTrainer
from dpspec.training.measure.logs import NoiseLog, NormLog, SamplingLog
from dpspec.training.measure.scores import ProjectionObserver


def audited(job, directions):
    seen = ProjectionObserver(job, directions)
    logs = SamplingLog(job.phases, seen.schedule.phases[0].sampler.records), NoiseLog(), NormLog()
    NativeTrainer().train(replace(job, observers=(seen, *logs)))
    return seen, *logs


def excess(seen, sigma):
    return (1.0 - seen.directions.count / seen.directions.parameters) * float(seen.spread.sum()) / sigma**2


@pytest.mark.family
@pytest.mark.rounding
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": {"kind": "sgd", "weight_decay": 0.05}},
        {"optimizer": {"kind": "momentum"}, "schedule": {"kind": "linear", "warmup": 7, "final": 0.1}},
        {"optimizer": {"kind": "momentum", "weight_decay": 0.01}, "schedule": {"kind": "cosine"}},
    ],
)
def test_the_noise_is_measured_by_the_update_rule(make_job, options):
    """Schedules, momentum and weight decay hide nothing: at full batches each residual is the noise that was added."""
    directions = SignBlocks(63, 20, seed=0)
    given = FrozenMap({"learning_rate": 0.1, "reduction": "mean", **options})
    job = make_job(steps=40, sampling={"scheme": "full"}, clip_norm=0.5, noise_multiplier=2.0, options=given)
    seen, _, noise, _ = audited(job, directions)
    lengths = torch.tensor(noise.squares, dtype=torch.float64).sqrt()
    assert torch.allclose(seen.squares.sqrt() * 0.5, lengths, rtol=1e-3)
    scale = seen.noise_scale()
    assert chi2.ppf(1e-6, scale.degrees) < scale.statistic < chi2.ppf(1 - 1e-6, scale.degrees)


@pytest.mark.ci
@pytest.mark.parametrize("sampling", [{"scheme": "poisson", "rate": 0.25}, {"scheme": "fixed", "batch_size": 12}])
def test_noise_scale_from_outside(make_job, sampling):
    """With sampling and canaries the noise is still measured in free directions, with a known sampling variance."""
    directions = SignBlocks(63, 20, seed=0)
    groups = CanaryGroups.planted(directions, torch.arange(20) % 2 == 0, 3, 10.0)
    seen, *_ = audited(make_job(canaries=groups, steps=100, noise_multiplier=1.5, sampling=sampling), directions)
    scale = seen.noise_scale()
    assert scale.degrees == 43 * 100
    assert scale.statistic > chi2.ppf(1e-6, scale.degrees)
    added = excess(seen, 1.5)
    assert added > 0
    ratio = ((scale.statistic - added) / scale.degrees) ** 0.5
    assert ratio == pytest.approx(1.0, abs=5 / (2 * scale.degrees) ** 0.5 + 0.1 * added / scale.degrees)
    # Canary directions contain the groups: their mean is members * inclusion, in clip norms.
    inclusion = 0.25 if sampling["scheme"] == "poisson" else 12 / 70
    planted, absent = seen.projections[:, ::2].mean(), seen.projections[:, 1::2].mean()
    deviation = (1.5**2 + 3 * inclusion + 1.0) ** 0.5 / (100 * 10) ** 0.5
    assert float(planted) == pytest.approx(3 * inclusion, abs=5 * deviation)
    assert float(absent) == pytest.approx(0.0, abs=5 * deviation)


@pytest.mark.ci
def test_phases_are_measured_each_in_its_own_units(make_job):
    quiet, loud = phase_of("full", 40, 0.0), phase_of("full", 40, 4.0, 0.1)
    seen, *_ = audited(make_job(phases=(quiet, loud)), SignBlocks(63, 3, seed=0))
    scale = seen.noise_scale()
    assert scale.degrees == 60 * 40
    assert chi2.ppf(1e-6, scale.degrees) < scale.statistic < chi2.ppf(1 - 1e-6, scale.degrees)
    assert float(seen.squares[:40].max()) < 1e-4


@pytest.mark.family
@pytest.mark.rounding
@pytest.mark.parametrize("learning_rate", [1e-9, 1e-8, 1e-7, 1e-5, 1e5])
def test_updates_lost_in_rounding_are_no_missing_noise(make_job, learning_rate):
    """A float32 model rounds small updates away, although the noise was added."""
    options = FrozenMap({"learning_rate": learning_rate, "reduction": "mean"})
    job = make_job(steps=20, options=options, sampling={"scheme": "full"})
    seen, *_ = audited(job, SignBlocks(63, 5, seed=0))
    scale = seen.noise_scale()
    assert scale.hidden == (20 if learning_rate < 1e-6 else 0)
    assert scale.degrees == 58 * (20 - scale.hidden)
    assert scale.hidden == 20 or scale.statistic > chi2.ppf(1e-6, scale.degrees)


def test_no_noise_at_all_measures_as_none(make_job):
    """At full batches the residual is rounding alone, which must not make a sum of squares negative."""
    job = make_job(noise_multiplier=1e-12, sampling={"scheme": "full"}, steps=20)
    declared = make_job(noise_multiplier=1.0, sampling={"scheme": "full"}, steps=20)
    seen = ProjectionObserver(declared, SignBlocks(63, 62, seed=0))
    NativeTrainer().train(replace(job, observers=(seen,)))
    assert 0.0 <= seen.noise_scale().statistic < 1e-6 * seen.noise_scale().degrees


def test_how_many_canaries_are_planted_can_be_kept_from_the_observer(make_job):
    """The number follows from the coins, and an adversary must not know them."""
    directions = SignBlocks(63, 20, seed=0)
    fixed = {"scheme": "fixed", "batch_size": 12}
    jobs = [
        make_job(sampling=fixed, canaries=CanaryGroups.planted(directions, torch.arange(20) < n, 3, 10.0))
        for n in (5, 15)
    ]
    blind = [ProjectionObserver(job, directions, planted=30) for job in jobs]
    knowing = [ProjectionObserver(job, directions) for job in jobs]
    NativeTrainer().train(replace(jobs[0], observers=(*blind, *knowing)))
    assert torch.equal(blind[0].projections, blind[1].projections)
    assert not torch.equal(knowing[0].projections, knowing[1].projections)


def test_steps_beyond_the_declared_ones_are_counted(make_job):
    directions = SignBlocks(63, 5, seed=0)
    seen = ProjectionObserver(make_job(steps=3), directions)
    NativeTrainer().train(make_job(steps=5, observers=(seen,)))
    assert seen.steps == 5
    assert seen.projections.shape == (3, 5)
    assert seen.noise_scale().degrees == 58 * 3
    short = ProjectionObserver(make_job(steps=9), directions)
    NativeTrainer().train(make_job(steps=5, observers=(short,)))
    assert short.steps == 5
    assert short.noise_scale().degrees == 58 * 5


def test_training_the_module_in_place_does_not_disturb_the_observer(make_job, make_model):
    job = make_job()
    seen = ProjectionObserver(job, SignBlocks(63, 5, seed=0))
    plain = ProjectionObserver(make_job(), SignBlocks(63, 5, seed=0))
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.fill_(7.0)
    job.model.register_forward_hook(lambda *_: pytest.fail("the observer runs the backend's module"))
    NativeTrainer().train(make_job(observers=(seen, plain)))
    assert torch.equal(seen.projections, plain.projections)


@pytest.mark.rounding
@pytest.mark.parametrize("scheme", [{"scheme": "poisson", "rate": 0.2}, {"scheme": "full"}])
def test_residuals_given_the_batches_are_the_noise(make_job, scheme):
    """For any sampling, each residual has the length of the added noise, and the expected spread is zero."""
    job = make_job(steps=20, sampling=scheme, clip_norm=0.5)
    seen, noise = ProjectionObserver(job, SignBlocks(63, 63, seed=0), drawn=True), NoiseLog()
    NativeTrainer().train(replace(job, observers=(seen, noise)))
    assert torch.allclose(seen.squares.sqrt() * 0.5, torch.tensor(noise.squares, dtype=torch.float64).sqrt(), rtol=1e-3)
    assert float(seen.spread.abs().max()) == 0.0


def test_what_cannot_be_observed_is_refused(make_job):
    """Updates by Adam, a missing step, and a batch that is reported after its model."""
    directions, model = SignBlocks(63, 5, seed=0), torch.zeros(63)
    adam = FrozenMap({"learning_rate": 0.1, "reduction": "mean", "optimizer": {"kind": "adam"}})
    with pytest.raises(ValueError, match="Adam cannot be inverted"):
        ProjectionObserver(make_job(options=adam), directions)
    for step, drawn, message in ((2, False, "step 2 came after step 0"), (1, True, "the batch of step 1 must be")):
        seen = ProjectionObserver(make_job(), directions, drawn=drawn)
        seen.released(0, model)
        with pytest.raises(ValueError, match=message):
            seen.released(step, model)
