"""The suite for sampling schemes: batches, moments, state, and the theory against executed batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import FrozenMap, Json, Phase, Sampling, SamplingKind
from dpspec.testing.attained import Neighbors, exceeded
from dpspec.testing.provider import ProviderSuite, require

if TYPE_CHECKING:
    import numpy as np

    from dpspec.sampling import SamplingScheme

#: Standard errors of an estimate beyond which it differs: a chance of 2e-9.
_FAR = 6.0

#: Largest number of patterns of inclusions for which the exact likelihood ratio is simulated.
_MOST_PATTERNS = 300

#: Deltas at which the theory's bound is tested.
_DELTAS = (1e-3, 1e-2, 0.05, 0.1, 0.3)


class SamplingSchemeSuite(ProviderSuite):
    """Subclass it and set ``kind`` and ``options``, the keys of a sampling block besides ``scheme``.

    Attributes:
        records: The number of records.
        epochs: The number of independent groups of steps of a simulated run.
        noise: The noise multipliers at which the theory is tested.
        sizes: The sizes of groups for which it is.
        runs: The number of simulated runs.
    """

    family: ClassVar[str] = "sampling scheme"
    options: ClassVar[Mapping[str, Json]] = {}
    records: ClassVar[int] = 12
    epochs: ClassVar[int] = 1
    noise: ClassVar[tuple[float, ...]] = (0.5, 1.0)
    sizes: ClassVar[tuple[int, ...]] = (1, 3)
    runs: ClassVar[int] = 4000

    def test_batches_are_distinct_records_in_order(self) -> None:
        """A batch holds distinct indices of records, ascending, as int64."""
        import torch

        scheme = self._scheme()
        for _ in range(4 * scheme.dependent_steps):
            batch = scheme.draw(torch.Generator().manual_seed(3))
            require(batch.dtype == torch.int64 and batch.ndim == 1, f"a batch is {batch.dtype} of shape {batch.shape}")
            values = batch.tolist()
            fits = all(0 <= i < self.records for i in values) and values == sorted(set(values))
            require(fits, f"a batch is {values[:20]}, not ascending distinct indices below {self.records}")

    def test_the_generator_decides(self) -> None:
        """Equal generators give equal batches, other generators other ones, and no global one is used."""
        import numpy as np
        import torch

        torch.manual_seed(1)
        masks = [self._mask(seed, 40).tobytes() for seed in (1, 1, 2)]
        require(masks[0] == masks[1], "equal generators give other batches: another source of randomness is used")
        scheme = self._scheme()
        _, variances = scheme.inclusion_moments(np.ones(scheme.dependent_steps, dtype=bool))
        fixed = float(variances.sum()) == 0.0  # every step's batch is known in advance
        require(fixed or masks[0] != masks[2], "the generator does not decide the batches")

    def test_inclusion_is_that_of_the_batches(self) -> None:
        """``inclusion`` is each record's share of batches, also by ``Sampling.inclusion``, which plans read."""
        scheme = self._scheme()
        declared = Sampling.of(self._block()).inclusion(self.records)
        capped = "max_batch" in self.options  # the options say the chance before batches are cut
        text = f"inclusion is {scheme.inclusion}, and the options say {declared}"
        require(capped or math.isclose(scheme.inclusion, declared, rel_tol=1e-9), text)
        masks = self._epochs(400)
        for record, z in enumerate(_scores(masks.mean(axis=1), scheme.inclusion)):
            share = float(masks[:, :, record].mean())
            require(abs(z) < _FAR, f"record {record} is in {share:.4f} of the batches, not in {scheme.inclusion:.4f}")

    def test_moments_are_those_of_the_batches(self) -> None:
        """Drawn batches have the moments ``inclusion_moments`` and ``covariance``."""
        import numpy as np

        scheme, masks = self._scheme(), self._epochs(400)
        observed = np.ones(masks.shape[1], dtype=bool)
        means, variances = scheme.inclusion_moments(observed)
        counts = masks.sum(axis=1)
        (z, *_) = _scores(counts.mean(axis=1, keepdims=True), float(means.sum()))
        require(abs(z) < _FAR, f"a record's mean number of batches is {counts.mean():.4f}, not {means.sum():.4f}")
        squares = (counts - means.sum()) ** 2
        (z, *_) = _scores(squares.mean(axis=1, keepdims=True), float(variances.sum()))
        require(abs(z) < _FAR, f"its variance is {squares.mean():.4f}, not {variances.sum():.4f}")
        centered = masks - masks.mean(axis=0)  # given the place of the step in its epoch
        products = centered[:, :, 0] * centered[:, :, 1]
        (z, *_) = _scores(products.mean(axis=1, keepdims=True), scheme.covariance())
        require(abs(z) < _FAR, f"the covariance of two records is {products.mean():.4g}, not {scheme.covariance():.4g}")

    def test_a_resumed_run_draws_the_same_batches(self) -> None:
        """A scheme with a state continues as if it had not stopped."""
        import torch

        scheme, generator = self._scheme(), torch.Generator().manual_seed(5)
        if not hasattr(scheme, "state"):
            return
        for _ in range(scheme.dependent_steps // 2 + 1):
            scheme.draw(generator)
        resumed, copy = self._scheme(), torch.Generator()
        copy.set_state(generator.get_state())
        resumed.restore(scheme.state())  # type: ignore[attr-defined]
        for _ in range(2 * scheme.dependent_steps):
            same = torch.equal(scheme.draw(generator), resumed.draw(copy))
            require(same, "after restore(state()) the batches differ: the state is not whole")

    def test_checks_exist(self) -> None:
        """``checks`` names at least one check of batches that dpspec has."""
        from dpspec.stats.conformance import table

        all_checks = {row.name for row in table.TABLE if row.of_batches}
        names = self.code().checks
        require(names, "no check compares the batches with the scheme: name some in `checks`")
        unknown = sorted(set(names) - all_checks)
        require(not unknown, f"unknown checks {', '.join(unknown)} (valid: {', '.join(sorted(all_checks))})")

    def test_the_theory_holds_for_executed_batches(self) -> None:
        """No bound of the theory is below what drawn batches show about a record or a group, in either direction."""
        from dpspec.accounting import PrivacyLoss

        scheme = self._scheme()
        theory = scheme.theory
        if theory is None:
            return
        steps = self.epochs * scheme.dependent_steps
        masks = self._epochs(self.runs, self.epochs)
        for size, sigma in itertools.product(self.sizes, self.noise):
            included = masks[:, :, _most_together(masks, size)].sum(axis=2).astype(float)
            phase = Phase({"steps": steps, "noise_multiplier": sigma, "clip_norm": 1.0, "sampling": self._block()})
            loss = PrivacyLoss(tuple(theory.composed(phase, size, self.records)))
            points = [(loss.epsilon(delta).upper, delta) for delta in _DELTAS]

            absent = partial(_outputs, steps=steps, sigma=sigma, included=None)
            pair = Neighbors(absent=absent, present=partial(_outputs, steps=steps, sigma=sigma, included=included))
            problems = [str(problem) for problem in exceeded(pair, points, ("add", "remove"))]
            setting = f"at noise {sigma:g}" + (f" for groups of {size}" if size > 1 else "")
            require(not problems, f"{setting} the theory is too small: {'; '.join(problems)}")

    def test_a_tight_theory_is_attained(self) -> None:
        """Equal gradients of all members attain the lower ends of a ``tight`` theory for removed records.

        Simulated probabilities are off by 0.05 or more, so that only large errors show.
        """
        import numpy as np

        from dpspec.accounting import PrivacyLoss

        scheme = self._scheme()
        theory = scheme.theory
        if theory is None or scheme.other_gradients != "zero":
            return
        steps = self.epochs * scheme.dependent_steps
        masks = self._epochs(self.runs, self.epochs)
        for size, sigma in itertools.product(self.sizes, self.noise):
            phase = Phase({"steps": steps, "noise_multiplier": sigma, "clip_norm": 1.0, "sampling": self._block()})
            pairs = tuple(theory.attained(phase, size, self.records, 0)) if theory.attains(phase, size) else ()
            if not pairs:
                continue
            included = masks[:, :, _most_together(masks, size)].sum(axis=2).astype(float)
            rows, counts = np.unique(included, axis=0, return_counts=True)
            if len(rows) > _MOST_PATTERNS:
                continue
            loss = PrivacyLoss(pairs, "remove")
            for delta in _DELTAS:
                epsilon = loss.epsilon(delta).lower
                if epsilon <= 0.0:  # delta is larger than the advantage
                    continue
                attained = _most_attained(rows, counts / len(included), len(included), sigma, epsilon)
                text = f"at noise {sigma:g} equal gradients of {size} attain a delta of at most {attained:.4g}"
                require(attained >= delta, f"{text} at epsilon = {epsilon:.6g}, and a tight theory claims {delta:g}")

    # -- parts of the tests

    def _block(self) -> FrozenMap:
        provider: SamplingKind = self.provider()
        return FrozenMap({"scheme": provider.kind, **self.options})

    def _scheme(self) -> SamplingScheme:
        from dpspec.sampling import sampler_of

        self.registry()
        return sampler_of(self._block(), self.records)

    def _mask(self, seed: int, steps: int) -> np.ndarray[Any, Any]:
        """Inclusions (steps, records) of consecutive steps."""
        import numpy as np
        import torch

        scheme, generator = self._scheme(), torch.Generator().manual_seed(seed)
        mask = np.zeros((steps, self.records), dtype=np.int8)
        for step in range(steps):
            mask[step, scheme.draw(generator).numpy()] = 1
        return mask

    def _epochs(self, count: int, epochs: int = 1) -> np.ndarray[Any, Any]:
        """Inclusions (count, steps, records) of independent epochs of dependent steps."""
        steps = epochs * self._scheme().dependent_steps
        return self._mask(11, count * steps).reshape(count, steps, self.records)


def _outputs(
    rng: np.random.Generator, n: int, *, steps: int, sigma: float, included: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """Of ``n`` runs, whose members a row of ``included`` counts at each step, the best tests of many schemes (n, 2).

    They are the sum and the likelihood of one inclusion at an unknown step.
    """
    import numpy as np

    shown = sigma * rng.normal(size=(n, steps))
    if included is not None:
        shown += included[rng.integers(0, len(included), n)]
    log_likelihood = np.log(np.exp(np.clip(shown / sigma**2, -50.0, 50.0)).sum(axis=1))
    return np.stack([shown.sum(axis=1), log_likelihood], axis=1)


def _most_attained(
    rows: np.ndarray[Any, Any], shares: np.ndarray[Any, Any], runs: int, sigma: float, epsilon: float
) -> float:
    """An upper bound, at level 1e-6, of delta at ``epsilon`` for removed records.

    The members' inclusions are ``rows`` (patterns, steps), whose ``shares`` come from ``runs`` simulated runs. Delta
    changes by at most the total variation distance of the shares from the probabilities. Its mean is at most
    sqrt(patterns / runs) / 2, and McDiarmid bounds the rest; Hoeffding bounds the error of the outputs.
    """
    import numpy as np

    rng, draws = np.random.default_rng(7), 20_000
    logs = math.log(2.0 / 1e-6)
    slack = math.sqrt(len(rows) / runs) / 2.0 + math.sqrt(logs / (2.0 * runs)) + math.sqrt(logs / (2.0 * draws))
    shown = rows[rng.choice(len(rows), draws, p=shares)] + sigma * rng.normal(size=(draws, rows.shape[1]))
    exponents = np.log(shares) + (shown @ rows.T - 0.5 * (rows**2).sum(axis=1)) / sigma**2
    largest = exponents.max(axis=1)
    losses = largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))
    return float((-np.expm1(np.minimum(0.0, epsilon - losses))).mean()) + slack


def _most_together(masks: np.ndarray[Any, Any], size: int) -> list[int]:
    """The first record, then repeatedly the one with the largest number of batches in common with the chosen ones."""
    members = [0]
    while len(members) < min(size, masks.shape[2]):
        shared = (masks * masks[:, :, members].sum(axis=2, keepdims=True, dtype=int)).sum(axis=(0, 1))
        shared[members] = -1
        members.append(int(shared.argmax()))
    return members


def _scores(values: np.ndarray[Any, Any], expected: float) -> np.ndarray[Any, Any]:
    """The deviation of the mean of each column from ``expected``, in standard errors."""
    import numpy as np

    errors = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    difference = values.mean(axis=0) - expected
    exact = np.abs(difference) <= 1e-9 * max(1.0, abs(expected))
    return np.where(exact, 0.0, difference / np.maximum(errors, 1e-12))
