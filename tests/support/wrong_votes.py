"""Wrong variants of the votes: each breaks one promise, as plugins do by mistake."""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any, ClassVar

import dpspec.contract as dps
from dpspec import kit
from support.votes import EXAMPLE, Votes, gaussian_epsilon

# -- bounds


class HalvedMu(Votes):
    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) / 2.0


class ForgottenRoot(Votes):
    """One count instead of two changes."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) / math.sqrt(2.0)


class VarianceForDeviation(Votes):
    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return math.sqrt(2.0) * group_size / float(spec.mechanism["sigma"]) ** 2


class GroupIgnored(Votes):
    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, 1)


class SmallerForGroups(Votes):
    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, 1) / group_size * 2.0


class GrowsWithNoise(Votes):
    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return math.sqrt(2.0) * group_size * float(spec.mechanism["sigma"]) / 4.0


class RightAtTheClaimOnly(Votes):
    """Large deltas have the epsilon of half the effect."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return gaussian_epsilon(self.mu(spec, group_size) / (2.0 if delta > 1e-5 else 1.0), delta)


class RisesWithDelta(Votes):
    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, min(delta, 1e-3) if delta < 0.2 else 1e-6, group_size)


class Negative(Votes):
    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) if delta < 0.5 else -1.0


class NotANumber(Votes):
    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return math.nan


class RandomBound(Votes):
    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) * (1.0 + os.urandom(1)[0] / 256)


class PureGaussian(Votes):
    """Finite at delta 0, which Gaussian noise never is."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, max(delta, 1e-9), group_size)


_calls = itertools.count()


class MutableBound(Votes):
    """The bound shrinks with each call."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) + 1.0 / (1 + next(_calls))


class ReplacedForAdded(Votes):
    """A replaced record moves a vote; an added one adds one vote. The bound is that of an added one."""

    scope: ClassVar = dps.Scope(adjacency="replace-one")
    example = EXAMPLE.replace("threat_model: {", "threat_model: {adjacency: replace-one, ")

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return group_size / float(spec.mechanism["sigma"])


class SteppedVotes(Votes):
    """Several rounds of voting, correct."""

    schema: ClassVar = {**Votes.schema, "rounds": kit.integer("The number of rounds.", least=1, most=1000, default=1)}
    example = EXAMPLE.replace("sigma: 2.0", "sigma: 2.0, rounds: 4")

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) * math.sqrt(float(spec.mechanism["rounds"]))


class FallsWithRounds(SteppedVotes):
    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return Votes.mu(self, spec, group_size) * 4.0 / math.sqrt(float(spec.mechanism["rounds"]))


class _ReadsData(Votes):
    """The bound depends on ``shrink``, a number from 0.3 to 1 that the rows decide."""

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding | dps.Series]:
        self.factor = self.shrink(context)
        yield from super().bound(spec, context)

    def shrink(self, context: dps.Context) -> float:
        raise NotImplementedError

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) / self.factor


class ReadsLabels(_ReadsData):
    def shrink(self, context: dps.Context) -> float:
        y = context.data.train_y
        return 0.5 + 0.5 * float((y[: len(y) // 2] == y[0]).mean())


class ReadsFeatures(_ReadsData):
    def shrink(self, context: dps.Context) -> float:
        return 1.0 / (1.0 + float(abs(context.data.train_x).max()) / 100.0)


class ReadsDuplicates(_ReadsData):
    def shrink(self, context: dps.Context) -> float:
        import numpy as np

        return len(np.unique(context.data.train_x, axis=0)) / len(context.data.train_x)


class ReadsRecords(_ReadsData):
    """More records, smaller bound, without ``min_records``."""

    def shrink(self, context: dps.Context) -> float:
        return math.sqrt(context.facts.records / 60.0)


class RareVotes(Votes):
    """A vote changes with probability 0.2, correct: the two directions differ."""

    directions = "both"
    q = 0.2

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        from dpspec import accounting

        if delta == 0.0:
            return math.inf
        mu = self.mu(spec, group_size)
        pair = accounting.Mixture([0.0, mu], [1.0 - self.q, self.q], 1.0)
        return accounting.PrivacyLoss(((pair, 1),), self.directions).epsilon(delta).upper  # type: ignore[arg-type]

    def release(self, inputs: Any, context: dps.Context, index: int, group_size: int, coins: Any) -> kit.Releases:
        import numpy as np

        rare = np.random.default_rng(context.seed(index, "rare", str(group_size))).random(len(coins)) < self.q
        return super().release(inputs, context, index, group_size, coins * rare)


class AbsentFirst(RareVotes):
    directions = "absent-first"


# -- noise


class LessNoise(Votes):
    """0.97 of the noise, reported as drawn."""

    drawn = 0.97

    def reported(self, noise: Any, context: dps.Context) -> Any:
        return 0.97 * noise.ravel()


class HalfNoise(Votes):
    """Half of the noise, reported as full."""

    drawn = 0.5


class CappedNoise(Votes):
    def scale(self, sigma: float) -> float:
        return min(sigma, 3.0)


class FixedNoise(Votes):
    def scale(self, sigma: float) -> float:
        return 2.0


class OtherNoiseReported(Votes):
    drawn = 0.5

    def reported(self, noise: Any, context: dps.Context) -> Any:
        import numpy as np

        return np.random.default_rng(context.seed(0, "lie")).normal(size=noise.size)


class TwoTeachers(Votes):
    """A record is among the data of two teachers."""

    moved = 2.0


# -- attacks


class FlippedScore(Votes):
    """No error for privacy; the attack just shows nothing."""

    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return -super().scores(released, counts, change, sigma, coins)


class ReadsBits(Votes):
    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return coins.astype(float)


class ReadsBitsWeakly(Votes):
    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return super().scores(released, counts, change, sigma, coins) + 0.7 * coins


class ReadsHalfOfTheBits(Votes):
    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        found = super().scores(released, counts, change, sigma, coins)
        found[::2] = coins[::2] * 9.0
        return found


# -- randomness


class SeedIgnored(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return 0


class SeedOfTrialOnly(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [index, group_size]


class SeedOfAuditOnly(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return context.seed(0, "noise", str(group_size))


class SeedOfHash(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [context.seed(index, "noise"), hash(f"noise {group_size}") % 2**32]


class SeedOfTheDay(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [context.seed(index, "noise", str(group_size)), int(time.time() // 86400)]


class SeedOfSetOrder(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        names = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"}
        return [context.seed(index, "noise", str(group_size)), *map(len, names), ord(next(iter(names))[0])]


class Unseeded(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return None


_drawn = itertools.count()


class MutableCounter(Votes):
    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [context.seed(index, "noise"), next(_drawn)]


class RepeatedNoise(Votes):
    """All releases share the noise of the first ten."""

    def normals(self, context: dps.Context, index: int, group_size: int, count: int) -> Any:
        import numpy as np

        return np.resize(super().normals(context, index, group_size, 10), (count, 2))


class ReadsFile(Votes):
    """The seed depends on a file that grows."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        path = Path(gettempdir()) / f"votes-{os.getpid()}"
        path.write_bytes((path.read_bytes() if path.exists() else b"") + b".")
        return [context.seed(index, "noise"), path.stat().st_size]


# -- keys, conclusions, processes


class ClaimsInKey(Votes):
    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        return dps.FrozenMap({**super().trial_inputs(spec), "claims": [claim.id for claim in spec.claims]})


class TimeInKey(Votes):
    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        return dps.FrozenMap({**super().trial_inputs(spec), "at": time.time_ns()})


class ImpureConclude(Votes):
    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        import random

        random.random()
        yield from super().conclude(spec, trials)


class ConcludesByHash(Votes):
    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        self.attack = f"attack {hash('votes') % 1000}"  # type: ignore[misc]
        yield from super().conclude(spec, trials)


class CannotTravel(Votes):
    def __init__(self) -> None:
        self.locked = (n for n in range(3))


class TorchForChecks(Votes):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        import torch  # noqa: F401

        yield from super().check(spec, facts)


class UnprovenTable(Votes):
    """A table states upper bounds that no finding implies."""

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding | dps.Series]:
        yield from super().bound(spec, context)
        yield kit.series(
            "identified", "Identified groups", {"rate": [0.01], "at most": [0.02]}, rigor="theorem", source="x",
            upper=["at most"],
        )  # fmt: skip


class WithoutValues(Votes):
    """Correct, with releases without values, as trainings have none; ``counts`` are the numbers of releases."""

    counts: ClassVar[list[int]] = []

    def release(self, inputs: Any, context: Any, index: int, group_size: int, coins: Any) -> Any:
        self.counts.append(len(coins))
        return dataclasses.replace(super().release(inputs, context, index, group_size, coins), values=None)
