"""Scores of canaries, of all iterates or of the final model, and the accuracy of a model."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.contract import LoadedData
from dpspec.contract.attacks import Directions, Observed, Records
from dpspec.contract.providers import TrainingJob
from dpspec.training.canaries import plant
from dpspec.training.device import Array, derive, generator, tensors
from dpspec.training.gradients import flat_model
from dpspec.training.gradients.persample import FlatModel, clipper
from dpspec.training.loop.contributions import Drawn, Estimated, Population, Sample, population
from dpspec.training.loop.native import NativeTrainer, ScheduledPhase
from dpspec.training.measure.residuals import Residuals
from dpspec.training.measure.streamed_gradients import StreamedGradients, conjugate_gradients
from dpspec.training.providers import MOST_STORED, SHADOWS


class ProjectionObserver(Residuals):
    """Project residuals on the directions of gradient canaries: ``projections`` (steps, count), in clip norms."""

    directions: Directions
    kept = (*Residuals.kept, "projections")

    def __init__(
        self,
        job: TrainingJob,
        directions: Directions,
        planted: int | None = None,
        looks: int | None = None,
        *,
        drawn: bool = False,
        sample: Sample | None = None,
    ) -> None:
        super().__init__(job, planted, looks, drawn=drawn, sample=sample)
        self.directions = directions
        self.projections = torch.zeros(self.schedule.total, directions.count, dtype=torch.float32)

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, real: Population) -> None:
        def keep(along: Array) -> None:
            self.projections[step - 1] = torch.from_numpy(along)

        self.transfers.add(keep, self.directions.project(residual))


#: Ridge relative to the mean diagonal, for identical canaries.
_JITTER = 1e-6

#: Assumed minimum noise, in clip norms.
_LEAST_NOISE = 1e-3


class RecordScores(Residuals):
    """Sum the log-likelihood ratios of insertion, ``scores`` (m,) float64, over steps, for groups of equal records.

    Let G (m, P) be the canaries' clipped gradients at the previous model, in clip norms, and J_i the number of copies
    of canary i in the batch. The released sum minus the expected contribution of the real records is r = sum_i J_i g_i
    + noise + (real records drawn - expected). z = G r has mean K J with K = G G^T and covariance sigma^2 K +
    q (1 - q) C C^T, C = G (real gradients)^T. For each canary, the others are modeled as Gaussian, given the posterior
    of their inclusion bits. The step's score is the log-likelihood ratio of J_i ~ Binomial(copies, q) against J_i = 0.
    """

    kept = (*Residuals.kept, "scores")

    def __init__(
        self,
        job: TrainingJob,
        canaries: Records,
        copies: Array,
        planted: int,
        *,
        drawn: bool = False,
        sample: Sample | None = None,
    ) -> None:
        """Prepare scores of m ``canaries``, with ``copies`` (m,) each, inserted with probability 1/2.

        ``job`` has only the real records. ``planted`` is the number of canaries that the adversary assumes.
        """
        super().__init__(job, planted, drawn=drawn, sample=sample)
        self._canaries = tensors(canaries.x, canaries.y, job.device)
        self._copies = torch.tensor(copies, dtype=torch.float64, device=job.device)
        self._counts = torch.arange(int(copies.max()) + 1, dtype=torch.float64, device=job.device)
        self.scores = torch.zeros(len(copies), dtype=torch.float64, device=job.device)

    def seen(self, step: int, phase: ScheduledPhase, previous: Tensor, residual: Tensor, real: Population) -> None:
        finite = residual.isfinite().all()
        if finite.device.type == "cpu" and not bool(finite):
            return
        rows = torch.cat(list(self._clipped(previous, *self._canaries, phase)))
        gram = (rows @ rows.T).double()
        sigma, q = max(phase.noise_multiplier, _LEAST_NOISE), phase.sampler.inclusion
        covariance = sigma**2 * gram
        if q < 1.0 and not isinstance(real, Drawn):
            covariance += self._sampling(previous, rows, phase, real)
        believed = torch.sigmoid(self.scores)
        mean = believed * q * self._copies
        variance = believed * q * self._copies * (1.0 - q + q * self._copies) - mean.square()
        shift, strength, failed = _shifts_and_strengths(covariance, gram, mean, variance, (rows @ residual).double())
        # ln sum_j P[J = j] exp(j shift - j^2 strength / 2) for J ~ Binomial(copies, q)
        j, copies = self._counts, self._copies.unsqueeze(1)
        log_choose = torch.lgamma(copies + 1) - torch.lgamma(j + 1) - torch.lgamma((copies - j).clamp_min(0) + 1)
        weights = log_choose + torch.xlogy(j, torch.tensor(q)) + torch.xlogy(copies - j, torch.tensor(1.0 - q))
        terms = weights + j * shift.unsqueeze(1) - 0.5 * j**2 * strength.unsqueeze(1)
        ratio = torch.logsumexp(torch.where(j <= copies, terms, -torch.inf), dim=1)
        self.scores += torch.where(finite & (failed == 0), ratio, 0.0)

    def _sampling(self, state: Tensor, rows: Tensor, phase: ScheduledPhase, real: Population | None = None) -> Tensor:
        """Covariance (m, m) of the drawn real records along ``rows`` (m, P), including the error of an estimate."""
        q, total = phase.sampler.inclusion, torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
        along = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        x, y, c, factor = self.x, self.y, phase.sampler.covariance(), 1.0
        if isinstance(real, Estimated):
            sampled = real.places.to(x.device)
            x, y, factor = x[sampled], y[sampled], real.factor
        for chunk in self._clipped(state, x, y, phase):
            products = (rows @ chunk.T).double()
            total += products @ products.T
            along += products.sum(1)
        # The sample represents all records; its own sampling error is q^2 (factor - 1) per record.
        record_variance = q * (1.0 - q) - c + q * q * (factor - 1.0)
        return record_variance * factor * total + c * torch.outer(along, along)

    def _clipped(self, state: Tensor, x: Tensor, y: Tensor, phase: ScheduledPhase) -> Iterator[Tensor]:
        """Clipped gradients in clip norms, rows (b, P), chunk by chunk; zero if not finite."""
        for chunk in self.model.gradients(state, x, y):
            yield clipper(phase.clip).rows(self.model.layout, chunk) / phase.clip_norm


def _shifts_and_strengths(
    covariance: Tensor, gram: Tensor, mean: Tensor, variance: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Shift and strength (m,) of each canary's signal in ``observed`` (m,), and whether they are invalid (``failed``).

    ``covariance`` (m, m) is the covariance of noise and sampling.
    """
    whole = covariance + (gram * variance) @ gram
    diagonal = whole.diagonal()
    diagonal += _JITTER * diagonal.mean() + 1e-12
    signal, failed = torch.linalg.solve_ex(whole, gram)  # column i: covariance^-1 (gradients) g_i
    strength = (gram * signal).sum(0)
    # Remove each canary's own share of covariance (Sherman-Morrison) and mean.
    alone = (1.0 - variance * strength).clamp_min(1e-9)
    return (signal.T @ (observed - gram @ mean) + strength * mean) / alone, strength / alone, failed


def margins(model: nn.Module, state: Tensor, records: Records, *, device: str) -> Array:
    """Log-odds ln(p / (1 - p)) of each record's label at ``state`` (P,), (m,) float64."""
    functional = FlatModel(model, device=device)
    x, y = tensors(records.x, records.y, device)
    with torch.no_grad():
        logits = functional.logits(state.to(functional.device), x).double()
        label_logits = logits.gather(1, y.unsqueeze(1)).squeeze(1)
        other_logits = logits.scatter(1, y.unsqueeze(1), -torch.inf)
        log_odds: Array = (label_logits - torch.logsumexp(other_logits, dim=1)).cpu().numpy()
    return log_odds


#: Maximum number of points on the line at which gradients are computed, and at which they are not stored.
_POINTS, _STREAMED_POINTS = 8, 2

#: Rounds of scoring, each with the posterior of the previous one.
_ROUNDS = 4

#: Relative standard deviation of the expected contribution of real records.
_UNSURE = 0.1


class PathScores(RecordScores):
    """Scores of input canaries from the first and the last model only.

    The models between the first, theta_0, and the last, theta_T, are assumed to be on a straight line. For plain
    descent, momentum and schedules, the total movement is a known constant times the sum of all noisy sums:

        (theta_0 - theta_T) / scale - (expected contribution of real records) = sum_i b_i c_i e_i + noise + sampling.

    b_i is the inclusion bit of canary i, c_i its number of copies, and e_i the sum over steps of q g_i(theta_t), with
    its clipped gradient g_i on the line. Each canary is scored by its log-likelihood ratio, with the others as Gaussian
    with their posterior mean and variance. The response of real records to the noise is unknown, so their contribution
    is uncertain.

    More than ``MOST_STORED`` canaries in full batches with flat clipping are scored without their matrix of gradients.
    Every other inclusion bit is then uncertain as before the training, and signal strengths have their mean ratio to
    the squared norms of the e_i.
    """

    def __call__(self, first: Tensor, last: Tensor) -> Tensor:
        """Log-likelihood ratios (m,), float64, from two models (P,); zeros if one diverged."""
        first, last = first.to(self.x.device), last.to(self.x.device)
        scores = torch.zeros(len(self._copies), dtype=torch.float64, device=first.device)
        if not bool((first.isfinite() & last.isfinite()).all()):
            return scores
        schedule = list(self.schedule)
        plain = all(phase.sampler.inclusion == 1.0 and clipper(phase.clip).is_flat for phase in schedule)
        few = len(self._copies) <= MOST_STORED
        streamed = StreamedGradients(self.model, *self._canaries) if plain and not few else None
        points = min(_POINTS if streamed is None else _STREAMED_POINTS, len(schedule))
        effect: Tensor | None = None
        residual = (first - last) / self._scale(len(schedule))
        noise, drifts, sampled = 0.0, [], []
        for k in range(points):
            steps = schedule[k * len(schedule) // points : (k + 1) * len(schedule) // points]
            phase, q, weight = steps[0], steps[0].sampler.inclusion, len(steps)
            state = torch.lerp(first, last, (k + 0.5) / points)
            if streamed is None:
                rows = torch.cat(list(self._clipped(state, *self._canaries, phase))) * phase.clip_norm
                effect = weight * q * rows if effect is None else effect + weight * q * rows
            else:
                streamed.add(state, weight, phase.clip_norm)
            drift = weight * population(self.model, state, self.x, self.y, phase.clip).mean(phase.sampler)
            residual = residual - drift
            drifts.append(drift)
            noise += sum((step.noise_multiplier * step.clip_norm) ** 2 for step in steps)
            if q < 1.0:
                sampled.append((state, phase, weight))
        unsure_drifts, noise = _UNSURE * torch.stack(drifts), max(noise, 1e-6)
        if streamed is not None:
            return self._streamed_scores(streamed, residual, noise, unsure_drifts)
        assert effect is not None
        gram = (effect @ effect.T).double()
        covariance = noise * gram
        for state, phase, weight in sampled:
            covariance = covariance + weight * phase.clip_norm**2 * self._sampling(state, effect, phase)
        unsure = (unsure_drifts @ effect.T).double()
        covariance = covariance + unsure.T @ unsure
        observed_effect = (effect @ residual).double()
        for _ in range(_ROUNDS):
            believed = torch.sigmoid(scores)
            mean, variance = believed * self._copies, believed * (1.0 - believed) * self._copies**2
            shift, strength, _ = _shifts_and_strengths(covariance, gram, mean, variance, observed_effect)
            scores = self._copies * shift - 0.5 * self._copies**2 * strength
        return scores

    def _streamed_scores(self, effects: StreamedGradients, residual: Tensor, noise: float, unsure: Tensor) -> Tensor:
        """Log-likelihood ratios (m,), from the mean of e_i^T covariance^-1 e_i / |e_i|^2, estimated with random signs.

        The estimate's relative standard deviation is at most about (2 / m)^(1/2).
        """
        mean, variance = 0.5 * self._copies, 0.25 * self._copies**2

        def covariance(direction: Tensor) -> Tensor:
            from_canaries = effects.transposed(variance.float() * effects.times(direction))
            return noise * direction + from_canaries + unsure.T @ (unsure @ direction)

        def by_canary(vector: Tensor) -> Tensor:
            return effects.times(conjugate_gradients(covariance, vector)).double()

        present = effects.norms > 0.0
        signs = 2.0 * torch.randint(0, 2, mean.shape, generator=generator(0, "signs")).to(mean) - 1.0
        signs = torch.where(present, signs / effects.norms.clamp_min(1e-300), 0.0)
        ratio = signs @ by_canary(effects.transposed(signs.float())) / present.sum().clamp_min(1)
        strength = ratio * effects.norms.square()
        alone = (1.0 - variance * strength).clamp_min(1e-9)
        shift = (by_canary(residual - effects.transposed(mean.float())) + strength * mean) / alone
        return self._copies * shift - 0.5 * self._copies**2 * strength / alone

    def _scale(self, steps: int) -> float:
        """Movement of the model over all steps per unit of every step's sum."""
        update = copy.deepcopy(self._update)
        state = torch.zeros(1, dtype=torch.float64)
        for _ in range(steps):
            state = update(state, torch.ones(1, dtype=torch.float64))
        return -float(state) / steps


#: Minimum standard deviation of log-odds, in case all shadow models agree.
_LEAST_STD = 1e-12


def loss(observed: Observed) -> Array:
    """Log-odds of the labels."""
    return observed.after


def loss_difference(observed: Observed) -> Array:
    """Decrease of the loss, ln(1 + exp(-before)) - ln(1 + exp(-after)).

    Across many runs, asinh(score / unit) with the noise as unit: monotone, and well spread for any learning rate and
    divisor.
    """
    fell: Array = np.logaddexp(0.0, -observed.before) - np.logaddexp(0.0, -observed.after)
    return np.asarray(np.arcsinh(fell / observed.unit)) if observed.many else fell


def likelihood_ratio(observed: Observed) -> Array:
    """Log-likelihood ratios of insertion, by Gaussians fitted per group size to canaries with known bits."""
    scores = np.zeros(len(observed.coins))
    for size in np.unique(observed.copies):
        of_size = np.flatnonzero(observed.copies == size)
        features, coins = np.column_stack([observed.before[of_size], observed.after[of_size]]), observed.coins[of_size]
        present, absent = features[coins == 1], features[coins == 0]
        if min(len(present), len(absent)) == 0:
            continue
        # Linear discriminant analysis: each hypothesis has its own mean; the covariance is shared.
        centred = np.concatenate([present - present.mean(0), absent - absent.mean(0)])
        covariance = centred.T @ centred / max(1, len(centred) - 2)
        covariance += (1e-6 * np.trace(covariance) + 1e-12) * np.eye(2)
        weights = np.linalg.solve(covariance, present.mean(0) - absent.mean(0))
        scores[of_size] = (features - 0.5 * (present.mean(0) + absent.mean(0))) @ weights
    return scores


def path(observed: Observed) -> Array:
    """Log-likelihood ratios by the interpolated path of the models."""
    scored = PathScores(observed.job, observed.canaries, observed.copies, observed.planted)
    ratios: Array = scored(torch.tensor(observed.first), torch.tensor(observed.last)).cpu().numpy()
    return ratios


def shadow(observed: Observed) -> Array:
    """Log-odds by the final model, standardized by ``SHADOWS`` shadow models (after Carlini et al. 2022).

    They are trained from the first model, in pairs with complementary inclusion bits. One standard deviation is used
    for all canaries. Seeds are the same for every run and independent of the run's own.
    """
    odds = shadow_log_odds(observed, SHADOWS)[0]
    std = np.sqrt(np.mean(odds.std(axis=0, ddof=1) ** 2))
    scores: Array = (observed.after - odds.mean(axis=0)) / np.maximum(std, _LEAST_STD)
    return scores


def shadow_log_odds(observed: Observed, models: int) -> tuple[Array, Array]:
    """Canaries' log-odds by ``models`` (even) trained models, 0 if not finite, and inclusion bits: (models, m) each."""
    job, first = observed.job, torch.tensor(observed.first)
    half = np.random.default_rng(derive(0, "shadow coins")).integers(0, 2, (models // 2, len(observed.copies)))
    coins = np.concatenate([half, 1 - half])
    rows = np.zeros(coins.shape)
    for number, tossed in enumerate(coins):
        model = copy.deepcopy(job.model)
        flat_model.load(model, first)
        x, y, _ = plant(job.x, job.y, observed.canaries, observed.copies, tossed)
        seed = derive(number, "shadow run")
        NativeTrainer().train(replace(job, x=x, y=y, model=model, seed=seed, observers=()))
        rows[number] = margins(model, flat_model.flatten(model), observed.canaries, device=job.device)
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0), coins


#: Records whose outputs are computed at a time.
_CHUNK = 1024


def count_right(model: nn.Module, x: Array, y: Array, device: str | torch.device = "cpu") -> int:
    """Number of records ``x`` (n, ...) with the largest output at their label ``y`` (n,)."""
    functional, right = FlatModel(model, device=device), 0
    state = functional.initial()
    with torch.no_grad():
        for start in range(0, len(x), _CHUNK):
            features, labels = tensors(x[start : start + _CHUNK], y[start : start + _CHUNK], functional.device)
            right += int((functional.logits(state, features).argmax(1) == labels).sum())
    return right


def right_answers(model: nn.Module, data: LoadedData, device: str | torch.device = "cpu") -> dict[str, dict[str, int]]:
    """``{train: {right, records}, test: {right, records}}`` as stored in trials, without empty splits.

    Real-valued targets have no right answers: the result is empty.
    """
    if data.train_y.dtype.kind == "f":
        return {}
    rows = {"train": (data.train_x, data.train_y), "test": (data.test_x, data.test_y)}
    splits = {name: split for name, split in rows.items() if len(split[0])}
    return {name: {"right": count_right(model, x, y, device), "records": len(x)} for name, (x, y) in splits.items()}
