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
    """The bound belongs to half of the effect."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) / 2.0


class ForgottenRoot(Votes):
    """The bound forgets that a changed vote moves two counts: a factor of the root of 2."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, group_size) / math.sqrt(2.0)


class VarianceForDeviation(Votes):
    """The bound reads the standard deviation as a variance."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return math.sqrt(2.0) * group_size / float(spec.mechanism["sigma"]) ** 2


class GroupIgnored(Votes):
    """Groups have the bound of one record."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, 1)


class SmallerForGroups(Votes):
    """The bound falls with the size of the group."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return super().mu(spec, 1) / group_size * 2.0


class GrowsWithNoise(Votes):
    """The bound grows with the noise."""

    def mu(self, spec: dps.Spec, group_size: int) -> float:
        return math.sqrt(2.0) * group_size * float(spec.mechanism["sigma"]) / 4.0


class RightAtTheClaimOnly(Votes):
    """The bound is right at the claimed delta, and belongs to half of the effect at larger ones."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return gaussian_epsilon(self.mu(spec, group_size) / (2.0 if delta > 1e-5 else 1.0), delta)


class RisesWithDelta(Votes):
    """Epsilon rises with delta."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, min(delta, 1e-3) if delta < 0.2 else 1e-6, group_size)


class Negative(Votes):
    """Epsilon is negative at large deltas."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) if delta < 0.5 else -1.0


class NotANumber(Votes):
    """The bound is NaN."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return math.nan


class RandomBound(Votes):
    """The bound is random."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) * (1.0 + os.urandom(1)[0] / 256)


class PureGaussian(Votes):
    """Gaussian noise has a finite epsilon at delta 0."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, max(delta, 1e-9), group_size)


_calls = itertools.count()


class MutableBound(Votes):
    """The bound shrinks with each call."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) + 1.0 / (1 + next(_calls))


class ReplacedForAdded(Votes):
    """Replaced records have the bound of added ones."""

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
    """The bound falls with the number of rounds."""

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
    """A bound for all data reads labels."""

    def shrink(self, context: dps.Context) -> float:
        y = context.data.train_y
        return 0.5 + 0.5 * float((y[: len(y) // 2] == y[0]).mean())


class ReadsFeatures(_ReadsData):
    """A bound for all data reads features."""

    def shrink(self, context: dps.Context) -> float:
        return 1.0 / (1.0 + float(abs(context.data.train_x).max()) / 100.0)


class ReadsDuplicates(_ReadsData):
    """A bound for all data reads duplicates."""

    def shrink(self, context: dps.Context) -> float:
        import numpy as np

        return len(np.unique(context.data.train_x, axis=0)) / len(context.data.train_x)


class ReadsRecords(_ReadsData):
    """The bound falls with the number of records, without ``min_records``."""

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
    """The bound covers one direction and is stated for both."""

    directions = "absent-first"


class RemovedOnly(RareVotes):
    """Bounds and claims of one direction, correct: with the vote against without."""

    directions = "present-first"
    scope: ClassVar = dps.Scope(direction="remove")
    example = EXAMPLE.replace("threat_model: {", "threat_model: {direction: remove, ")


class SwappedDirection(RemovedOnly):
    """The bound of one direction is stated for the other."""

    directions = "absent-first"


class ReplacedVotes(Votes):
    """A replaced record moves a vote from one class to the other, correct."""

    scope: ClassVar = dps.Scope(adjacency="replace-one")
    example = EXAMPLE.replace("threat_model: {", "threat_model: {adjacency: replace-one, ")


class LaplaceVotes(Votes):
    """Laplace noise of scale ``sigma`` on both counts, correct: both move by one."""

    noise = "laplace"

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return 2.0 * group_size / float(spec.mechanism["sigma"])

    def normals(self, context: dps.Context, index: int, group_size: int, count: int) -> Any:
        import numpy as np

        return np.random.default_rng(self.seed(context, index, group_size)).laplace(size=(count, 2))

    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return (abs(released - counts) - abs(released - counts - change)).sum(axis=1) / sigma


class OneCountOfLaplace(LaplaceVotes):
    """The bound of Laplace noise counts one of two counts."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, group_size) / 2.0


class OfTheseRows(Votes):
    """The bound depends on the rows and says so, correct."""

    profile_deltas: ClassVar = ()
    example = EXAMPLE.replace("delta: 1e-5", "delta: 1e-5, over: this")

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding | dps.Series]:
        share = float((context.data.train_y == context.data.train_y[0]).mean())
        for finding in super().bound(spec, context):
            yield dataclasses.replace(
                finding, value=finding.value * (1.0 + share), scope=dps.Scope(data="this"), privacy=spec.data_privacy
            )


class OfManyRecords(Votes):
    """The bound falls with the number of records and requires it, correct."""

    profile_deltas: ClassVar = ()
    example = EXAMPLE.replace("delta: 1e-5", "delta: 1e-5, min_records: 60")

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding | dps.Series]:
        records = context.facts.records
        for finding in super().bound(spec, context):
            value = finding.value * (1.0 + 1.0 / records)
            yield dataclasses.replace(finding, value=value, scope=dps.Scope(min_records=records))


class Answers(kit.SimpleMechanism):
    """Randomized response: each record's answer is flipped with a probability. Bounds only, correct."""

    kind = "answers"
    schema: ClassVar = {"flip": kit.number("The probability of a flipped answer.", above=0.0, most=0.5)}
    source = "Warner 1965"
    example = """\
dpspec: 1
name: answers-example
mechanism: {kind: answers, flip: 0.25}
data: {kind: declared, records: 60}
threat_model: {adjacency: replace-one, group_size: [1, 2]}
claims:
  - {id: proved, kind: pure-dp, epsilon: 1.1}
"""
    scope: ClassVar = dps.Scope(adjacency="replace-one")

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        flip = float(spec.mechanism["flip"])
        return group_size * math.log((1.0 - flip) / flip)


class AnswersOfOne(Answers):
    """Groups have the pure bound of one record."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return super().epsilon(spec, delta, 1)


class AnswersByOdds(Answers):
    """Randomized response has a wrong pure bound."""

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        return group_size * (math.log(1.0 / float(spec.mechanism["flip"])) - 0.5)


# -- noise


class LessNoise(Votes):
    """0.97 of the noise is drawn, and reported as drawn."""

    drawn = 0.97

    def reported(self, noise: Any, context: dps.Context) -> Any:
        return 0.97 * noise.ravel()


class HalfNoise(Votes):
    """Half of the noise is drawn, and reported as full."""

    drawn = 0.5


class CappedNoise(Votes):
    """The noise has a cap that the declaration lacks."""

    def scale(self, sigma: float) -> float:
        return min(sigma, 3.0)


class FixedNoise(Votes):
    """The noise ignores its parameter."""

    def scale(self, sigma: float) -> float:
        return 2.0


class OtherNoiseReported(Votes):
    """Half of the noise is drawn, and other noise is reported."""

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


class FlippedScoreWithControl(FlippedScore):
    """The score has the wrong sign: the attack refutes no control."""

    example = EXAMPLE.replace(
        "audit:",
        "  - {id: control, kind: approx-dp, epsilon: 0.1, delta: 1e-5, control: true, expect: refuted}\naudit:",
    )


class ReadsBits(Votes):
    """The score is the inclusion bit."""

    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return coins.astype(float)


class ReadsBitsWeakly(Votes):
    """The score adds 0.7 times the inclusion bit."""

    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        return super().scores(released, counts, change, sigma, coins) + 0.7 * coins


class ReadsHalfOfTheBits(Votes):
    """The score reads every second inclusion bit."""

    def scores(self, released: Any, counts: Any, change: Any, sigma: float, coins: Any) -> Any:
        found = super().scores(released, counts, change, sigma, coins)
        found[::2] = coins[::2] * 9.0
        return found


# -- randomness


class SeedIgnored(Votes):
    """The seed is constant."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return 0


class SeedOfTrialOnly(Votes):
    """The seed depends on the trial and not on the audit."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [index, group_size]


class SeedOfAuditOnly(Votes):
    """All trials have one seed."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return context.seed(0, "noise", str(group_size))


class SeedOfHash(Votes):
    """The seed comes from ``hash(str)``."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [context.seed(index, "noise"), hash(f"noise {group_size}") % 2**32]


class SeedOfTheDay(Votes):
    """The seed comes from the clock."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return [context.seed(index, "noise", str(group_size)), int(time.time() // 86400)]


class SeedOfSetOrder(Votes):
    """The seed comes from the order of a set."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        names = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"}
        return [context.seed(index, "noise", str(group_size)), *map(len, names), ord(next(iter(names))[0])]


class Unseeded(Votes):
    """The noise has no seed."""

    def seed(self, context: dps.Context, index: int, group_size: int) -> Any:
        return None


_drawn = itertools.count()


class MutableCounter(Votes):
    """The seed comes from a counter of the process."""

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
    """The key of trials contains the claims."""

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        return dps.FrozenMap({**super().trial_inputs(spec), "claims": [claim.id for claim in spec.claims]})


class TimeInKey(Votes):
    """The key of trials contains the time."""

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        return dps.FrozenMap({**super().trial_inputs(spec), "at": time.time_ns()})


class ImpureConclude(Votes):
    """``conclude`` draws from a global generator."""

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        import random

        random.random()
        yield from super().conclude(spec, trials)


class ConcludesByHash(Votes):
    """``conclude`` uses ``hash(str)``."""

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        self.attack = f"attack {hash('votes') % 1000}"  # type: ignore[misc]
        yield from super().conclude(spec, trials)


class CannotTravel(Votes):
    """The audit cannot be pickled."""

    def __init__(self) -> None:
        self.locked = (n for n in range(3))


class TorchForChecks(Votes):
    """``check`` imports torch."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        import torch  # noqa: F401

        yield from super().check(spec, facts)


class TorchAtImport(Votes):
    """The module of the hook imports torch."""

    imports = "import torch"


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
