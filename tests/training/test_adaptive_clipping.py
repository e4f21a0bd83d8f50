"""Adaptive clipping in the native loop: its rule, its runs, and what one record changes of sum and count."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from mpmath import mp
from scipy.special import ndtr
from support import scope_oracle as oracle

from dpspec.accounting import Mixture, PrivacyLoss, joint_noise_multiplier
from dpspec.contract import FrozenMap, Observer, Phase
from dpspec.contract.providers import Cancelled, Resumable
from dpspec.training.adaptive_clipping import AdaptiveClipping, largest_clip_norm, unclipped
from dpspec.training.canaries import CanaryGroups, SignBlocks
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel, per_example_gradients
from dpspec.training.loop.native import NativeTrainer, parts_of, run_batched
from dpspec.training.measure.residuals import SharedPopulations
from dpspec.training.measure.run_evidence import RunLogs
from dpspec.training.measure.scores import ProjectionObserver

CLIPPING = {"scheme": "adaptive", "count_std": 1.5, "clipbound_learning_rate": 0.4, "target_unclipped_quantile": 0.7}
SAMPLINGS = {
    "poisson": {"scheme": "poisson", "rate": 0.25},
    "empty": {"scheme": "poisson", "rate": 1e-9},
    "full": {"scheme": "full"},
    "fixed": {"scheme": "fixed", "batch_size": 10},
    "truncated": {"scheme": "truncated-poisson", "rate": 0.25, "max_batch": 11},
    "allocated": {"scheme": "random-allocation", "epoch_steps": 4},
    "shuffled": {"scheme": "shuffled", "batch_size": 10},
}


class Reports(Observer):
    def __init__(self):
        self.counts, self.batches, self.norms, self.noises, self.states = [], [], [], [], []

    def counted(self, step, clip_norm, count, noise):
        self.counts.append((step, clip_norm, count, noise))

    def sampled(self, step, indices):
        self.batches.append(indices.clone())

    def clipped(self, step, norms):
        self.norms.append(norms.clone())

    def noised(self, step, noise):
        self.noises.append(noise.clone())

    def released(self, step, state):
        self.states.append(state.clone())


def phase_of(steps=8, clipping=CLIPPING, sampling=SAMPLINGS["poisson"], clip_norm=1.0, noise=1.0):
    options = {"steps": steps, "noise_multiplier": noise, "clip_norm": clip_norm}
    return FrozenMap({**options, "sampling": sampling, "clipping": clipping})


def trained(job, **changes):
    reports = Reports()
    job = replace(job, observers=(reports, *job.observers), **changes)
    NativeTrainer().train(job)
    return reports


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("quantile", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [-3.5, 0.0, 7.25, 1e12, -1e12])
def test_the_rule_is_the_published_one(centered, quantile, count):
    options = {"count_std": 2.0, "centered": centered, "target_unclipped_quantile": quantile}
    rule = AdaptiveClipping(**options, min_clipbound=1e-3, max_clipbound=50.0)
    with mp.workdps(40):  # Algorithm 1: b_tilde = count / m + 1/2, C <- C exp(-eta (b_tilde - gamma))
        share = mp.mpf(count) / 8 + (mp.mpf(1) / 2 if centered else 0)
        expected = min(mp.mpf(50), max(mp.mpf("1e-3"), 3 * mp.exp(-mp.mpf("0.2") * (share - quantile))))
    assert rule.next_clip_norm(3.0, count, 8.0) == pytest.approx(float(expected), rel=1e-12)


def test_limits_and_learning_rate_zero():
    rule = AdaptiveClipping.of(Phase(phase_of(clip_norm=2.0)))
    assert (rule.min_clipbound, rule.max_clipbound) == (0.02, 200.0)
    assert largest_clip_norm(Phase(phase_of(clip_norm=2.0))) == 200.0
    assert largest_clip_norm(Phase({**phase_of(clip_norm=2.0), "clipping": {"scheme": "flat"}})) == 2.0
    assert replace(rule, clipbound_learning_rate=0.0).next_clip_norm(1.7, 1e9, 1.0) == 1.7
    assert [rule.next_clip_norm(1.0, count, 1e-3) for count in (1e300, -1e300)] == [0.02, 200.0]


@pytest.mark.family
@pytest.mark.parametrize("scheme", SAMPLINGS)
def test_a_run_is_that_of_a_plain_loop(make_job, scheme):
    """Each sum, count and clip norm, computed from single gradients; the noise is the reported one."""
    job = make_job(
        phases=(phase_of(sampling=SAMPLINGS[scheme]), phase_of(4, sampling=SAMPLINGS[scheme], clip_norm=0.3))
    )
    initial = flat_model.flatten(job.model)
    reports = trained(job)
    x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)
    state, clip_norm = initial, 0.0
    assert [step for step, *_ in reports.counts] == list(range(1, 13))
    for step, used, count, noise in reports.counts:
        clip_norm = {1: 1.0, 9: 0.3}.get(step, clip_norm)
        assert used == pytest.approx(clip_norm, rel=1e-12)
        batch = reports.batches[step - 1]
        rows = per_example_gradients(job.model, x[batch], y[batch], state=reports.states[step - 1])
        lengths = rows.double().norm(dim=1)
        total = (rows * (clip_norm / lengths.clamp_min(clip_norm)).float()[:, None]).sum(0)
        short = int((lengths < clip_norm).sum())
        assert count - noise == pytest.approx(short - 0.5 * len(batch), abs=1e-9)
        state = state - 0.5 / 10.0 * (total + reports.noises[step - 1])
        assert torch.allclose(state, reports.states[step], atol=1e-5)
        factor = math.exp(-0.4 * (count / 10.0 + 0.5 - 0.7))
        clip_norm = min(100.0 * (1.0, 0.3)[step > 8], max((1.0, 0.3)[step > 8] / 100.0, clip_norm * factor))
    # The noise on the sum has the scale of each step's clip norm.
    scaled = [
        float(n.double().square().mean()) / c**2 for n, (_, c, *_) in zip(reports.noises, reports.counts, strict=True)
    ]
    assert np.mean(scaled) == pytest.approx(1.0, abs=0.25)


def test_plain_counts_and_clip_norms_at_their_limits(make_job):
    rule = {"centered": False, "count_std": 4.0, "target_unclipped_quantile": 0.2, "clipbound_learning_rate": 9.0}
    clipping = {**CLIPPING, **rule, "min_clipbound": 0.9, "max_clipbound": 1.1}
    reports = trained(make_job(phases=(phase_of(40, clipping),)))
    clip_norms = [clip_norm for _, clip_norm, *_ in reports.counts]
    assert {0.9, 1.1} <= set(clip_norms)
    assert min(clip_norms) == 0.9
    assert max(clip_norms) == 1.1
    for (_, clip_norm, count, noise), norms in zip(reports.counts, reports.norms, strict=True):
        assert count - noise == pytest.approx(float((norms < clip_norm * (1.0 - 1e-6)).sum()), abs=1e-9)


@pytest.mark.ci
def test_the_clip_norm_approaches_the_quantile_of_the_norms(make_job):
    clipping = {**CLIPPING, "count_std": 1e-3, "clipbound_learning_rate": 0.1}
    job = make_job(phases=(phase_of(150, clipping, {"scheme": "full"}, clip_norm=20.0, noise=0.0),))
    job = replace(job, expected_batch_size=40.0, options=FrozenMap({"learning_rate": 1e-6, "reduction": "mean"}))
    reports = trained(job)
    lengths, _ = FlatModel(job.model).look(reports.states[-1], torch.from_numpy(job.x), torch.from_numpy(job.y))
    assert reports.counts[-1][1] == pytest.approx(float(lengths.quantile(0.7)), rel=0.1)


@pytest.mark.parametrize("stop", [3, 8])
def test_a_resumed_run_has_the_same_clip_norms(make_job, tmp_path, stop):
    job = make_job(phases=(phase_of(), phase_of(4, clip_norm=0.3)))
    whole = trained(job)
    model = make_job().model

    class Stop(Reports):
        def state(self):
            return {}

        def restore(self, state):
            """Ignore the empty state."""

    def run(cancelled):
        reports = Stop()
        where = Resumable(folder=tmp_path, steps=1)
        again = replace(job, model=model, observers=(reports,), resumable=where, cancelled=lambda: cancelled(reports))
        try:
            NativeTrainer().train(again)
        except Cancelled:
            return reports
        return reports

    first = run(lambda reports: len(reports.counts) == stop)
    second = run(lambda reports: False)
    assert first.counts + second.counts == whole.counts
    assert torch.equal(second.states[-1], whole.states[-1])


@pytest.mark.ci
def test_runs_together_have_their_own_clip_norms(make_job):
    """As single runs, with their populations: canaries, projections, counts and final models."""

    def jobs_and_watchers():
        jobs, watchers = [], []
        for seed in (1, 2, 3):
            directions = SignBlocks(63, 4, seed=seed)
            canaries = CanaryGroups(directions, torch.arange(seed), 1000.0)
            job = make_job(phases=(phase_of(),), seed=seed, canaries=canaries)
            watcher = ProjectionObserver(job, directions, planted=2)
            jobs.append(replace(job, observers=(watcher, Reports())))
            watchers.append(watcher)
        return jobs, watchers

    alone, lonely = jobs_and_watchers()
    for job in alone:
        NativeTrainer().train(job)
    jobs, watchers = jobs_and_watchers()
    SharedPopulations(watchers, make_job().model)
    finals = run_batched(jobs)
    clip_norms = set()
    for job, single, final, one, other in zip(jobs, alone, finals, watchers, lonely, strict=True):
        found, expected = job.observers[1], single.observers[1]
        assert np.allclose(found.counts, expected.counts, rtol=1e-9)
        assert torch.allclose(final, flat_model.flatten(single.model), atol=1e-5)
        assert torch.allclose(one.projections, other.projections, atol=1e-3)
        assert torch.allclose(one.counts, other.counts)
        assert torch.allclose(one.spread, other.spread, rtol=1e-4)
        clip_norms.add(found.counts[-1][1])
    assert len(clip_norms) == 3


def test_residuals_are_in_clip_norms_of_the_step(make_job):
    """Full batches without noise: a canary adds one clip norm, and -1/2 to the count, at each step."""
    directions = SignBlocks(63, 3, seed=0)
    canaries = CanaryGroups(directions, torch.tensor([0, 0]), 1000.0)
    job = make_job(phases=(phase_of(20, sampling={"scheme": "full"}, noise=0.0),), canaries=canaries)
    watcher, reports = ProjectionObserver(job, directions), Reports()
    NativeTrainer().train(replace(job, observers=(watcher, reports)))
    assert len({clip_norm for _, clip_norm, *_ in reports.counts}) > 15
    assert torch.allclose(watcher.projections, torch.tensor([2.0, 0.0, 0.0]).expand(20, 3), atol=2e-3)
    noises = torch.tensor([noise for *_, noise in reports.counts], dtype=torch.float64)
    assert torch.allclose(watcher.counts - noises, torch.full((20,), -1.0, dtype=torch.float64), atol=1e-9)


def vectors(job, clip_norm, state, rows):
    """Sum in clip norms and count of one step on all records ``rows``."""
    parts = parts_of(job)
    (phase,) = parts.schedule.phases
    at = phase.at(clip_norm)
    clipped = parts.contributions(state, rows, at.clip)
    count = at.adaptive.count(int(unclipped(clipped.norms, clip_norm)), len(clipped.norms))
    return clipped.sum.double() / clip_norm, count


@pytest.mark.family
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_record_moves_sum_and_count_by_their_sensitivity(make_job, centered, seed):
    """The executed step with and without a record, canary, exploding or vanishing gradient (Theorem 54)."""
    phase = phase_of(1, {**CLIPPING, "centered": centered}, {"scheme": "full"}, noise=0.8)
    canaries = CanaryGroups(SignBlocks(63, 2, seed=0), torch.tensor([0, 1]), 1000.0)
    job = make_job(phases=(phase,), canaries=canaries)
    x = job.x.copy()
    x[3], x[4], x[5] = np.nan, 1e18, 0.0
    job = replace(job, x=x)
    source = torch.Generator().manual_seed(seed)
    state = flat_model.flatten(job.model) + torch.randn(63, generator=source)
    most = 1.0 / joint_noise_multiplier(0.8, 1.5, centered=centered)
    everything, longest = torch.arange(42), 0.0
    for clip_norm in (1e-3, 0.7, 3.0, 100.0):
        total, count = vectors(job, clip_norm, state, everything)
        for record in (*range(10), 40, 41):  # with the special rows and both canaries
            less, fewer = vectors(job, clip_norm, state, everything[everything != record])
            moved = math.hypot(float((total - less).norm()) / 0.8, (count - fewer) / 1.5)
            assert moved <= most * (1.0 + 1e-4)
            longest = max(longest, moved)
    assert not centered or longest == pytest.approx(most, rel=1e-4)  # clipped records attain it


def masses(job, edges, counts_at):
    """Distribution of one step's sum and count in cells, over all Poisson batches of the executed contributions."""
    parts = parts_of(job)
    (phase,) = parts.schedule.phases
    total = np.zeros((len(edges) - 1, len(counts_at) - 1))
    for chance, batch in oracle.batches(phase.sampler):
        clipped = parts.contributions(parts.initial, torch.tensor(batch, dtype=torch.int64), phase.clip)
        count = phase.adaptive.count(int(unclipped(clipped.norms, phase.clip_norm)), len(batch))
        along = np.diff(ndtr((edges - float(clipped.sum)) / phase.deviation))
        total += chance * np.outer(along, np.diff(ndtr((counts_at - count) / phase.adaptive.count_std)))
    return total.ravel()


@pytest.mark.family
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("scheme", ["poisson", "full"])
@pytest.mark.parametrize("size", [1, 2])
def test_executed_neighbors_are_within_the_bound(centered, scheme, size):
    """Divergences of the executed step with and without a group, both directions, by enumeration and integration."""
    sampling = {"scheme": "poisson", "rate": 0.3} if scheme == "poisson" else {"scheme": "full"}
    phase = phase_of(1, {**CLIPPING, "centered": centered}, sampling, noise=0.9)
    joint = joint_noise_multiplier(0.9, 1.5, centered=centered)
    others, gradients = [0.3, -2.0, 5.0], {"clipped": 7.0, "unclipped": 0.999, "opposite": -7.0, "zero": 0.0}
    edges, counts_at = np.linspace(-14.0, 16.0, 1200), np.linspace(-14.0, 14.0, 700)
    bound = PrivacyLoss.of(Mixture.poisson(size, 0.3 if scheme == "poisson" else 1.0, joint), "both")
    for (name, gradient), known in itertools.product(gradients.items(), (others, [])):
        with_group = masses(oracle.run_of([phase], [], [], [*known, *[gradient] * size]), edges, counts_at)
        without = masses(oracle.run_of([phase], [], [], known), edges, counts_at)
        for epsilon in (0.0, 0.4, 1.5):
            worst = max(oracle.delta(with_group, without, epsilon), oracle.delta(without, with_group, epsilon))
            upper = bound.delta(epsilon).upper
            assert worst <= upper + 1e-6, (name, epsilon)
            if centered and name == "clipped" and not known:
                assert worst >= upper - 2e-3  # a group alone attains it


def test_logs_find_what_deviates(make_job):
    """Counts by another rule, counts that contradict the norms, and noise of another scale."""
    job = make_job(phases=(phase_of(),))

    def evidence(change):
        logs = RunLogs(job)

        reports = trained(job)
        for step, clip_norm, count, noise in reports.counts:
            logs.counts.counted(step, *change(step, clip_norm, count, noise))
            logs.counts.clipped(step, reports.norms[step - 1])
        return logs.counts

    honest = evidence(lambda step, *report: report)
    assert (honest.counts, honest.unruled, honest.miscounted) == (8, 0, 0)
    assert honest.evidence().of_steps.steps == 8
    other_rule = evidence(
        lambda step, clip_norm, count, noise: (clip_norm * (1.01 if step == 5 else 1.0), count, noise)
    )
    assert other_rule.unruled == 2
    without = evidence(lambda step, clip_norm, count, noise: (clip_norm, count - noise, 0.0))
    assert without.unruled == 7
    assert without.miscounted == 0
    assert without.evidence().statistic == 0.0
    silent = evidence(lambda step, clip_norm, count, noise: (clip_norm, count, 0.0))
    assert silent.miscounted == 8
    assert silent.unruled == 0
    broken = evidence(lambda step, *report: (math.nan, math.nan, math.nan))
    assert broken.unruled == 8
    assert broken.miscounted == 8
    assert broken.evidence().statistic > 1e299
