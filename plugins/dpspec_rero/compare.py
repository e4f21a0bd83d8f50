"""gamma by every method that a spec asks for, at many baselines: what the certified interval is held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec.accounting.interval import Interval
from dpspec_rero import clt, contour, edgeworth, montecarlo, renyi, theory
from dpspec_rero.certified import Certified
from dpspec_rero.montecarlo import Estimate
from dpspec_rero.steps import Steps, noisy, revealed

#: Methods whose values are measured against the certified ones.
APPROXIMATE = ("clt", "clt-printed", "edgeworth")

#: The delta of the one epsilon that ``epsilon-delta`` starts from, where no claim names a delta.
DEFAULT_DELTA = 1e-5

Values = list[float | None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """gamma at each of ``kappas``: certified, by other methods (None where one has no answer), and by Monte Carlo."""

    kappas: tuple[float, ...]
    certified: tuple[Interval, ...]
    others: Mapping[str, Values]
    drawn: tuple[Estimate, ...] = ()

    def only(self, kappas: Sequence[float]) -> Comparison:
        """The same at some of the baselines."""
        at = [self.kappas.index(kappa) for kappa in kappas]
        return Comparison(
            kappas=tuple(kappas),
            certified=tuple(self.certified[i] for i in at),
            others={name: [values[i] for i in at] for name, values in self.others.items()},
            drawn=tuple(self.drawn[i] for i in at) if self.drawn else (),
        )

    def reference(self, at: int) -> float:
        """The value that errors are measured from: the contour's where it is certified to be right, else the middle."""
        interval = self.certified[at]
        fine = self.others.get("contour", [None] * len(self.kappas))[at]
        return fine if fine is not None and fine in interval else 0.5 * (interval.lower + interval.upper)

    def error(self, method: str, at: int) -> float | None:
        """How far a method's value lies from the reference, relative to it: below 0 where it promises too little."""
        value = self.others[method][at]
        return None if value is None else value / self.reference(at) - 1.0


def compare(
    spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], certified: Sequence[Interval], delta: float
) -> Comparison:
    """All methods of the spec's ``baselines`` and ``monte_carlo`` at ``kappas``; ``certified`` are their intervals."""
    named = spec.mechanism.get("baselines", ())
    return Comparison(
        kappas=tuple(kappas),
        certified=tuple(certified),
        others={name: values for method in named for name, values in _values(method, spec, phases, kappas, delta)},
        drawn=_drawn(spec, phases, kappas),
    )


def _values(
    method: str, spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], delta: float
) -> list[tuple[str, Values]]:
    hidden, seen = noisy(phases), revealed(phases)
    leak = Certified(tuple(phases))

    def shown(values: Sequence[float | None]) -> Values:
        return [None if value is None else theory.with_revealed(value, seen) for value in values]

    if method == "epsilon-delta":
        (epsilon,) = leak.epsilons([delta], "both")
        (one_way,) = leak.epsilons([delta], "remove")
        return [
            ("epsilon-delta", [theory.gamma_of_epsilon_delta(k, one_way.upper, delta, both=False) for k in kappas]),
            ("epsilon-delta-both", [theory.gamma_of_epsilon_delta(k, epsilon.upper, delta, both=True) for k in kappas]),
        ]
    compute: Mapping[str, Callable[[], Values]] = {
        "clt": lambda: shown([clt.gamma_clt(k, hidden) for k in kappas]),
        "clt-printed": lambda: shown([clt.gamma_clt(k, hidden, as_printed=True) for k in kappas]),
        "edgeworth": lambda: shown(_or_nothing(edgeworth.gammas_edgeworth, kappas, hidden, _order(spec))),
        "contour": lambda: shown(_or_nothing(contour.gammas_contour, kappas, hidden)),
        "rdp": lambda: shown([gamma for gamma, _ in renyi.gammas_rdp(kappas, hidden)]),
        "absent-first": lambda: [interval.upper for interval in leak.tprs(kappas, "add")],
        "symmetrised": lambda: [interval.upper for interval in leak.symmetrised(kappas)],
    }
    return [(method, compute[method]())]


def _or_nothing(method: Callable[..., Sequence[float | None]], kappas: Sequence[float], *arguments: object) -> Values:
    """A method's values, none where it gives up: each kappa on its own, so that one does not take the others along."""
    values: Values = []
    for kappa in kappas:
        try:
            values.extend(method([kappa], *arguments))
        except ArithmeticError:
            values.append(None)
    return values


def _drawn(spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float]) -> tuple[Estimate, ...]:
    options = spec.mechanism.get("monte_carlo")
    if options is None:
        return ()
    seen = revealed(phases)
    found = montecarlo.gammas_monte_carlo(
        kappas, noisy(phases), int(options["samples"]), int(options["seed"]), float(options["confidence"])
    )
    return tuple(
        Estimate(
            value=theory.with_revealed(one.value, seen),
            standard_error=(1.0 - seen) * one.standard_error,
            interval=Interval(
                theory.with_revealed(one.interval.lower, seen), theory.with_revealed(one.interval.upper, seen)
            ),
        )
        for one in found
    )


def _order(spec: dps.Spec) -> int:
    return int(spec.mechanism.get("edgeworth_order", edgeworth.ORDER))


def finite(value: float | None) -> float | None:
    """The value, or None where it is not finite: columns are JSON, which has no infinity."""
    return value if value is not None and math.isfinite(value) else None
