"""Checks of the noise and of the mean update: measured on released models, and reported by the backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpspec.contract import Check, FrozenMap
from dpspec.stats import checking, freshness, martingale, noise
from dpspec.stats.measurement import Measurement

#: Rows that are compared with all earlier ones at once.
_BLOCK = 256


def noise_scale(found: Sequence[FrozenMap]) -> Iterator[Check]:
    """The size of the noise in directions that no canary uses."""
    degrees = sum(one["degrees"] for one in found)
    if degrees:
        outside = noise.lower_tail(sum(one["statistic"] for one in found), 1.0, degrees)
        yield checking.check(
            "noise-scale", outside, "measured", "relative to the declared scale, from released states alone"
        )


def residuals(found: Sequence[FrozenMap]) -> Iterator[Check]:
    """What is left of the updates: noise everywhere, no drift, nothing twice."""
    if not found:
        return
    parts = {
        name: (sum(one["layers"][name][0] for one in found), sum(one["layers"][name][1] for one in found))
        for name in found[0].get("layers", {})
    }
    if parts:
        name, layer = noise.quietest(parts)
        yield checking.check("noise-isotropy", layer, "measured", f"in each layer, least in {name}")
    yield checking.worst(
        "noise-isotropy",
        [noise.least_coordinate(o["coordinates"]["least"], o["steps"], o["coordinates"]["count"]) for o in found],
        "measured",
        "in each parameter",
    )
    yield checking.check("update", _drift(found), "measured", "relative to rate * sum of clipped gradients")
    several = [one for one in found if one["lag"]["lag"]]
    if several:
        lags = [
            _along(o["lag"], o, freshness.tested_lags(o["steps"]), "residuals of steps at the worst lag")
            for o in several
        ]
        yield checking.worst("fresh-noise", lags, "measured", "at every lag")
        pairs = [
            _along(o["pair"], o["pair"], o["steps"] * (o["steps"] - 1) // 2, "residuals of two steps") for o in several
        ]
        yield checking.worst("fresh-noise", pairs, "measured", "every two steps")
    if len(found) > 1:
        firsts = [one["first"] for one in found]
        tested = [_two_runs(firsts[i], firsts[j]) for i, j in _suspects([first["row"] for first in firsts], unit=True)]
        among = len(found) * (len(found) - 1) // 2
        yield checking.worst("fresh-noise", tested, "measured", "first steps of different trials", among)


def _drift(found: Sequence[FrozenMap]) -> Measurement:
    """The sum over trials along the expected update; what rounding can have changed is taken off."""
    total, rounding = sum(one["drift"]["total"] for one in found), sum(one["rounding"] for one in found)
    total = np.sign(total) * max(0.0, abs(total) - rounding)
    variance, least = sum(one["variance"] for one in found), sum(one["least"] for one in found)
    unit = sum(one["drift"]["unit"] for one in found)
    test = "residuals along the expected update, Freedman"
    return martingale.drift(float(total), variance, least, unit, test=test, declared=1.0)


def _along(one: FrozenMap, limits: FrozenMap, tried: int, test: str) -> Measurement:
    total = max(0.0, abs(one["total"]) - limits.get("rounding", 0.0)) * float(np.sign(one["total"]))
    found = martingale.drift(
        total, limits["variance"], limits["least"], one["unit"], test=f"{test}, Freedman", tried=max(1, tried)
    )
    return replace(found, detectable=checking.correlation(found.detectable))


def _two_runs(one: FrozenMap, other: FrozenMap) -> Measurement:
    """The other run's first residual along the one's."""
    earlier, later = np.asarray(one["row"], dtype=np.float64), np.asarray(other["row"], dtype=np.float64)
    length = float(np.linalg.norm(earlier)) or 1.0
    unit = (one["least"] * other["least"]) ** 0.5 * len(earlier) / length
    total = float(earlier @ later) / length if len(earlier) == len(later) else 0.0
    test = "residuals of two runs, Freedman"
    found = martingale.drift(total, other["variance"], other["least"], unit, test=test)
    return replace(found, detectable=checking.correlation(found.detectable))


def noise_log(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    """The noise that the backend says it added."""
    if not logs:
        return
    total, degrees = sum(log["statistic"] for log in logs), sum(log["degrees"] for log in logs)
    yield checking.check(
        "noise-scale", noise.two_sided(total, 1.0, degrees), "reported", "relative to the declared scale"
    )
    quiet = [noise.least_coordinate(log["quietest"], log["steps"], log["width"]) for log in logs]
    yield checking.worst("noise-isotropy", quiet, "reported", "in each parameter that was looked at")
    half = sum(log["steps"] * (log["width"] // 2) for log in logs)
    if half:
        halves = freshness.repeated(sum(log["halves"] for log in logs), half, 2 * half, 1, "correlation of parameters")
        yield checking.check("noise-isotropy", halves, "reported", "independent across parameters")
    pairs = sum(log["pairs"] for log in logs)
    if pairs:
        products = sum(log["products"] for log in logs)
        yield checking.check("fresh-noise", noise.correlation(products, pairs, degrees), "reported", "")
    yield from _again(logs)


def _again(logs: Sequence[FrozenMap]) -> Iterator[Check]:
    """Whether a step's noise, or a run's, was used before."""
    several = [log for log in logs if log["lag"]["lag"]]
    if several:
        lags = [_lag(log) for log in several]
        yield checking.worst("fresh-noise", lags, "reported", "at every lag")
        pairs = [_pair(log["pair"], log["width"], log["steps"] * (log["steps"] - 1) // 2) for log in several]
        yield checking.worst("fresh-noise", pairs, "reported", "every two steps")
    twins = [log for log in logs if "twin" in log]
    if twins:
        numbers = [log["steps"] * log["width"] for log in twins]
        test = "correlation of two runs"
        aligned = [
            freshness.repeated(log["twin"]["aligned"], n, 2 * n, 1, test) for log, n in zip(twins, numbers, strict=True)
        ]
        yield checking.worst("fresh-noise", aligned, "reported", "with another seed, step by step")
        any_two = [_pair(log["twin"]["largest"], log["width"], log["steps"] ** 2) for log in twins]
        yield checking.worst("fresh-noise", any_two, "reported", "with another seed, every two steps")
    firsts = [np.asarray(log["first"], dtype=np.float64) for log in logs]
    widths = {len(first) for first in firsts}
    if len(firsts) > 1 and len(widths) == 1:
        width = widths.pop()
        across = [_pair(float(firsts[i] @ firsts[j]), width, 1) for i, j in _suspects(firsts, unit=False)]
        among = len(firsts) * (len(firsts) - 1) // 2
        yield checking.worst("fresh-noise", across, "reported", "first steps of different trials", among)


def _suspects(rows: Sequence[npt.ArrayLike], *, unit: bool) -> list[tuple[int, int]]:
    """The pairs of rows (i before j) of which one is the most alike: the first pair, and for each j the i whose product
    with it is the largest, over the length of i where ``unit`` says so.

    A test of two rows grows with the size of that product and depends on nothing else but j, so that of all pairs,
    which may be millions, no other can be the worst.
    """
    if len({np.shape(row) for row in rows}) > 1:
        return list(combinations(range(len(rows)), 2))
    known = np.stack([np.asarray(row, dtype=np.float64) for row in rows])
    lengths = np.linalg.norm(known, axis=1) if unit else np.ones(len(known))
    units = known / np.where(lengths > 0.0, lengths, 1.0)[:, None]
    found = {(0, 1)}
    for start in range(1, len(known), _BLOCK):
        block = known[start : start + _BLOCK]
        size = np.abs(units[: start + len(block)] @ block.T)
        size[np.arange(len(size))[:, None] >= start + np.arange(len(block))[None, :]] = -1.0
        found |= {(int(i), start + j) for j, i in enumerate(np.argmax(size, axis=0))}
    return sorted(found)


def _lag(log: FrozenMap) -> Measurement:
    lag, steps, width = log["lag"]["lag"], log["steps"], log["width"]
    test = f"correlation of steps {lag} apart"
    return freshness.repeated(
        log["lag"]["products"], (steps - lag) * width, steps * width, freshness.tested_lags(steps), test
    )


def _pair(product: float, width: int, tried: int) -> Measurement:
    return freshness.repeated(product, width, 2 * width, max(1, tried), "largest correlation of two steps")
