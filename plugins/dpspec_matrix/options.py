"""Schemas of the encoder and the participation, and specs that no bound or no training covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec import kit

#: Largest number of steps, also of bounds that use all pairs of steps, and of attacks.
MOST_STEPS, MOST_PAIRED, MOST_ATTACKED = 100_000, 4_000, 2_000

#: Smallest entry of the diagonal of a banded encoder.
LEAST_DIAGONAL = 1e-6

#: Number of directions along which noise is compared, and of bands of its frequencies.
NOISE_DIRECTIONS, BANDS = 64, 8

#: Per kind of encoder: required keys.
_ENCODERS: Mapping[str, tuple[str, ...]] = {
    "identity": (),
    "tree": (),
    "banded": ("coefficients",),
    "square-root": ("bands",),
    "optimized": ("bands",),
    "inverse-square-root": ("bands",),
    "buffers": ("weights", "decays"),
}

#: Per scheme of participation: required and optional keys.
_SCHEMES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "single": ((), ()),
    "cyclic": (("separation",), ()),
    "min-separation": (("separation",), ("times",)),
    "cyclic-poisson": (("separation", "rate"), ()),
    "random-allocation": (("separation",), ()),
    "balls-in-bins": (("separation",), ()),
}

#: Schemes of a Gaussian pair, and those whose steps are drawn.
FIXED, DRAWN = ("single", "cyclic", "min-separation"), ("cyclic-poisson", "random-allocation", "balls-in-bins")


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(kit.Options):
    """The block ``mechanism.encoder``; keys of other kinds have no meaning."""

    kind: str = "identity"
    bands: int = 1
    coefficients: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Participation(kit.Options):
    """The block ``mechanism.participation``; ``times`` is 0 without a limit."""

    scheme: str
    separation: int = 1
    times: int = 0
    rate: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Schedule(kit.Options):
    """The options that the privacy depends on."""

    steps: int
    noise_multiplier: float
    encoder: EncoderOptions
    participation: Participation

    @property
    def most(self) -> int:
        """The largest number of participations of a record."""
        if self.participation.scheme == "single":
            return 1
        most = -(-self.steps // self.participation.separation)
        return min(most, self.participation.times or most)

    @property
    def slots(self) -> int:
        """Number of slots that the backend takes in turn."""
        return self.steps if self.participation.scheme == "single" else self.participation.separation

    @property
    def compares_all_steps(self) -> bool:
        """Whether the bound needs the inner products of all pairs of columns."""
        encoder, separation = self.encoder, self.participation.separation
        lengths = {"banded": len(encoder.coefficients), "identity": 1, "tree": self.steps, "buffers": self.steps}
        bands = lengths.get(encoder.kind, self.steps if encoder.kind == "inverse-square-root" else encoder.bands)
        if encoder.kind == "tree" or self.participation.scheme in ("random-allocation", "balls-in-bins"):
            return True
        if bands <= separation or self.most == 1:
            return False
        is_known = encoder.kind in ("square-root", "inverse-square-root") or (
            encoder.kind == "buffers" and sum(encoder.weights) < 1.0
        )
        return self.participation.scheme == "cyclic-poisson" or not is_known


def _conditions(key: str, kinds: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> list[dps.Json]:
    all_names = {name for needs, may in kinds.values() for name in (*needs, *may)}
    return [
        {
            "if": {"properties": {key: {"const": kind}}, "required": [key]},
            "then": {
                "required": [*needs],
                "properties": dict.fromkeys(sorted(all_names.difference(needs, may)), False),
            },
        }
        for kind, (needs, may) in kinds.items()
    ]


SCHEMA: Mapping[str, dps.Json] = {
    "encoder": {
        **kit.block(
            "The lower triangular matrix C. The noise of all steps is C^-1 Z, with independent rows of Z.",
            ["kind"],
            kind=kit.choice(
                "identity: independent noise. tree: binary tree of prefix sums. banded: Toeplitz with these "
                "coefficients. square-root: the first bands of the square root of the prefix sums. optimized: bands of "
                "minimal error of prefix sums. inverse-square-root: C^-1 has the first bands of the inverse of that "
                "root. buffers: coefficients 1 and sum_i weight_i decay_i^(k-1) at lag k.",
                *_ENCODERS,
            ),
            bands=kit.integer(
                "Number of diagonals (square-root, optimized: of C; inverse-square-root: of C^-1).", least=1, most=256
            ),
            coefficients=kit.array(
                "Coefficients of C from the diagonal down, the first at least 1e-6.",
                {"type": "number", "minimum": -1e3, "maximum": 1e3},
                least=1,
                most=MOST_PAIRED,
            ),
            weights=kit.array(
                "Weight of each buffer.", {"type": "number", "exclusiveMinimum": 0, "maximum": 1e3}, least=1, most=16
            ),
            decays=kit.array(
                "Decay of each buffer per step.",
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                least=1,
                most=16,
            ),
        ),
        "allOf": _conditions("kind", {kind: (needs, ()) for kind, needs in _ENCODERS.items()}),
    },
    "participation": {
        **kit.block(
            "The steps in which a record takes part.",
            ["scheme"],
            scheme=kit.choice(
                "single: one step. cyclic: every separation-th step. min-separation: steps at least separation apart. "
                "cyclic-poisson: every separation-th step, in which it is drawn with probability rate. "
                "random-allocation: one uniform step of each epoch of separation steps. balls-in-bins: every "
                "separation-th step from a uniform one on.",
                *_SCHEMES,
            ),
            separation=kit.integer("Number of steps between two of a slot, or of an epoch.", least=1, most=MOST_STEPS),
            times=kit.integer("Largest number of steps of a record (min-separation).", least=1, most=MOST_STEPS),
            rate=kit.number("Probability of each draw, a public constant (cyclic-poisson).", least=1e-30, most=1),
        ),
        "allOf": _conditions("scheme", _SCHEMES),
    },
    "noise_multiplier": kit.number(
        "Standard deviation of Z in units of the clip norm, independent of the sensitivity of C.", least=1e-3, most=1e6
    ),
    "clip_norm": kit.number("The l2 norm to which each gradient is clipped.", above=0, most=1e6, default=1.0),
}


def refusals(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    if spec.mechanism.get("phases") is not None:
        yield kit.unsupported("one matrix spans all steps: give steps, no phases", ("mechanism", "phases"))
        return
    schedule = Schedule.of(spec.mechanism.options)
    encoder, participation = schedule.encoder, schedule.participation
    most = MOST_PAIRED if schedule.compares_all_steps else MOST_STEPS
    if schedule.steps > most:
        reason = " because this bound compares all pairs of steps" if most == MOST_PAIRED else ""
        yield kit.bad_value(f"steps must be at most {most}{reason}, got {schedule.steps}", ("mechanism", "steps"))
    if encoder.coefficients and encoder.coefficients[0] < LEAST_DIAGONAL:
        message = f"the first coefficient must be at least {LEAST_DIAGONAL:g}, got {encoder.coefficients[0]:g}"
        yield kit.bad_value(message, ("mechanism", "encoder", "coefficients", 0))
    if len(encoder.weights) != len(encoder.decays):
        message = f"decays must be as many as weights: {len(encoder.decays)} for {len(encoder.weights)}"
        yield kit.bad_value(message, ("mechanism", "encoder", "decays"))
    separation_path: dps.Path = ("mechanism", "participation", "separation")
    if participation.scheme == "random-allocation" and schedule.steps % participation.separation:
        message = f"steps must be a multiple of the {participation.separation} steps of an epoch, got {schedule.steps}"
        yield kit.bad_value(message, separation_path)
    elif participation.scheme in DRAWN and participation.separation > schedule.steps:
        message = f"separation must be at most the number of steps, got {participation.separation}"
        yield kit.bad_value(message, separation_path)
    if spec.audit is not None:
        yield from _untrainable(spec, schedule)
    if participation.scheme in FIXED:
        return
    advice = f"use {', '.join(FIXED[:-1])} or {FIXED[-1]}"
    if max(spec.threat_model.group_size, default=1) > 1:
        message = f"{participation.scheme} is covered for single records, not for groups"
        yield kit.unsupported(message, ("threat_model", "group_size"), f"set it to [1], or {advice}")
    for i, claim in enumerate(spec.claims):
        if claim.group_size > 1:
            message = f"{participation.scheme} is covered for single records, not for groups of {claim.group_size}"
            yield kit.unsupported(message, ("claims", i, "group_size"), advice)
        if claim.kind == "gdp":
            message = f"no tight mu is known for {participation.scheme}"
            yield kit.unsupported(message, ("claims", i, "kind"), f"claim approx-dp, or {advice}")


def _untrainable(spec: dps.Spec, schedule: Schedule) -> Iterator[dps.Diagnostic]:
    if schedule.steps > MOST_ATTACKED:
        message = f"steps must be at most {MOST_ATTACKED} for an attack on all steps, got {schedule.steps}"
        yield kit.bad_value(message, ("mechanism", "steps"))
    if schedule.participation.times:
        message = "the backend takes records in all steps of their slot: it has no limit"
        yield kit.unsupported(message, ("mechanism", "participation", "times"), "leave times out, or audit")
    if schedule.steps <= MOST_ATTACKED and _inverse_grows(schedule.encoder, schedule.steps):
        message = "C^-1 has entries above 1e6, and its noise would leave float32"
        yield kit.bad_value(message, ("mechanism", "encoder"), "use coefficients whose inverse stays bounded")
    if spec.training.kind in ("native", "opacus", "recorded"):
        message = f"backend {spec.training.kind!r} has no correlated noise"
        yield kit.unsupported(message, ("training", "backend"), "write training: {backend: matrix}")
    for key in ("optimizer", "schedule"):
        if spec.training.get(key) is not None:
            message = f"this attack undoes plain descent at one rate: leave {key} out"
            yield kit.unsupported(message, ("training", key), "without audit the bound alone holds for any")


def _inverse_grows(encoder: EncoderOptions, steps: int) -> bool:
    """Whether C^-1 of a declared column has an entry above 1e6."""
    column = list(encoder.coefficients)
    if encoder.kind == "buffers":
        pairs = list(zip(encoder.weights, encoder.decays, strict=False))
        column = [1.0, *(sum(weight * decay**k for weight, decay in pairs) for k in range(steps - 1))]
    inverse: list[float] = []
    for row in range(steps if column and column[0] > 0.0 else 0):
        earlier = sum(column[lag] * inverse[row - lag] for lag in range(1, min(row + 1, len(column))))
        inverse.append((float(row == 0) - earlier) / column[0])
        if abs(inverse[-1]) > 1e6:
            return True
    return False
