"""gamma by every requested method at many baselines, compared with the certified interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dpspec.contract as dps
from dpspec.accounting import Interval
from dpspec_rero.bounds import ASSUMPTIONS, gamma_finding, scope_of
from dpspec_rero.options import Comparisons, Steps, noisy_steps, revealed_probability
from dpspec_rero.printed import contour, edgeworth, loss_table, montecarlo
from dpspec_rero.printed.closed_forms import CLT_MISPRINT, CLT_SOURCE, gamma_clt, gamma_from_epsilon_delta
from dpspec_rero.printed.montecarlo import Estimate
from dpspec_rero.theory import THEOREM, Leakage, with_revealed

#: Methods whose errors are reported relative to the certified values.
APPROXIMATE = ("clt", "clt-printed", "edgeworth")

Values = list[float | None]


@dataclass(frozen=True)
class _Method:
    """Bound, rigor and source under which a method's values are reported."""

    bound: dps.findings.Bound
    rigor: dps.findings.Rigor
    source: str
    printed: dps.Printed | None = None


_METHODS = {
    "clt": _Method("estimate", "approximate", CLT_SOURCE),
    "clt-printed": _Method(
        "estimate", "approximate", "Kaissis et al. 2023, main text", dps.Printed(refuted=True, reason=CLT_MISPRINT)
    ),
    "edgeworth": _Method("estimate", "approximate", edgeworth.SOURCE),
    "contour": _Method("estimate", "approximate", contour.SOURCE),
    "rdp": _Method("upper", "theorem", loss_table.SOURCE),
    "epsilon-delta": _Method("upper", "theorem", THEOREM, dps.Printed(refuted=False)),
    "epsilon-delta-both": _Method("upper", "theorem", f"{THEOREM}, from both directions"),
    "symmetrised": _Method("upper", "theorem", f"{THEOREM}, of the symmetrised curve"),
}

_MONTE_CARLO = _Method("estimate", "approximate", montecarlo.SOURCE)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """gamma at each of ``kappas``.

    Attributes:
        kappas: The baselines.
        certified: Certified intervals.
        others: Values by other methods; None if a method has no value.
        drawn: Monte Carlo estimates; empty without any.
        confidence: Joint confidence of the Monte Carlo intervals; None without any.
    """

    kappas: tuple[float, ...]
    certified: tuple[Interval, ...]
    others: Mapping[str, Values]
    drawn: tuple[Estimate, ...] = ()
    confidence: float | None = None

    def only(self, kappas: Sequence[float]) -> Comparison:
        """The same at some of the baselines."""
        indices = [self.kappas.index(kappa) for kappa in kappas]
        return Comparison(
            kappas=tuple(kappas),
            certified=tuple(self.certified[i] for i in indices),
            others={name: [values[i] for i in indices] for name, values in self.others.items()},
            drawn=tuple(self.drawn[i] for i in indices) if self.drawn else (),
            confidence=self.confidence,
        )

    def reference(self, index: int) -> float:
        """Reference for errors: the contour value if the certified interval contains it, else the midpoint."""
        interval = self.certified[index]
        fine = self.others.get("contour", [None] * len(self.kappas))[index]
        return fine if fine is not None and fine in interval else 0.5 * (interval.lower + interval.upper)

    def error(self, method: str, index: int) -> float | None:
        """Relative error of a method's value; negative if the method underestimates gamma."""
        value = self.others[method][index]
        return None if value is None else value / self.reference(index) - 1.0


def compare(
    spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], certified: Sequence[Interval], delta: float
) -> Comparison:
    """All methods of the spec's ``baselines`` and ``monte_carlo`` at ``kappas``; ``certified`` are their intervals."""
    asked = Comparisons.of(spec.mechanism.options)
    return Comparison(
        kappas=tuple(kappas),
        certified=tuple(certified),
        others={
            name: values for method in asked.baselines for name, values in _values(method, spec, phases, kappas, delta)
        },
        drawn=_draw(spec, phases, kappas),
        confidence=None if asked.monte_carlo is None else asked.monte_carlo.confidence,
    )


def gamma_findings(comparison: Comparison) -> Iterator[dps.Finding]:
    """gamma at each baseline: the certified bound, then the requested comparisons."""
    for index, (kappa, interval) in enumerate(zip(comparison.kappas, comparison.certified, strict=True)):
        yield gamma_finding(kappa, interval)
        for name, values in comparison.others.items():
            value, method = values[index], _METHODS.get(name)
            if value is not None and method is not None:
                yield _finding(kappa, value, name, method)
        if comparison.drawn:
            drawn = comparison.drawn[index]
            yield _finding(kappa, drawn.value, "monte-carlo", _MONTE_CARLO)
            yield dps.Finding(
                quantity="gamma",
                value=drawn.interval.upper,
                lower=drawn.interval.lower,
                bound="upper",
                rigor="statistical",
                at=dps.FrozenMap({"kappa": kappa}),
                scope=scope_of(),
                method="monte-carlo",
                source=montecarlo.INTERVAL_SOURCE,
                confidence=comparison.confidence,
                assumptions=ASSUMPTIONS,
            )


def _finding(kappa: float, value: float, name: str, method: _Method) -> dps.Finding:
    return dps.Finding(
        quantity="gamma",
        value=value,
        bound=method.bound,
        rigor=method.rigor,
        at=dps.FrozenMap({"kappa": kappa}),
        scope=scope_of(),
        method=name,
        source=method.source,
        printed=method.printed,
        assumptions=ASSUMPTIONS,
    )


def _values(
    method: str, spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float], delta: float
) -> list[tuple[str, Values]]:
    noisy, revealed = noisy_steps(phases), revealed_probability(phases)
    leakage = Leakage(tuple(phases))

    def shown(values: Sequence[float | None]) -> Values:
        return [None if value is None else with_revealed(value, revealed) for value in values]

    if method == "epsilon-delta":
        (epsilon,) = leakage.epsilons([delta], "both")
        (one_way,) = leakage.epsilons([delta], "remove")
        return [
            ("epsilon-delta", [gamma_from_epsilon_delta(k, one_way.upper, delta, both=False) for k in kappas]),
            ("epsilon-delta-both", [gamma_from_epsilon_delta(k, epsilon.upper, delta, both=True) for k in kappas]),
        ]
    order = Comparisons.of(spec.mechanism.options).edgeworth_order or edgeworth.ORDER
    compute: Mapping[str, Callable[[], Values]] = {
        "clt": lambda: shown([gamma_clt(k, noisy) for k in kappas]),
        "clt-printed": lambda: shown([gamma_clt(k, noisy, as_printed=True) for k in kappas]),
        "edgeworth": lambda: shown(_each_or_none(edgeworth.gammas_edgeworth, kappas, noisy, order)),
        "contour": lambda: shown(_each_or_none(contour.gammas_contour, kappas, noisy)),
        "rdp": lambda: shown([gamma for gamma, _ in loss_table.gammas_rdp(kappas, noisy)]),
        "absent-first": lambda: [interval.upper for interval in leakage.tprs(kappas, "add")],
        "symmetrised": lambda: [interval.upper for interval in leakage.symmetrised(kappas)],
    }
    return [(method, compute[method]())]


def _each_or_none(method: Callable[..., Sequence[float | None]], kappas: Sequence[float], *arguments: object) -> Values:
    """A method's values, None if it fails. Each kappa is computed separately, so one failure affects no other value."""
    values: Values = []
    for kappa in kappas:
        try:
            values.extend(method([kappa], *arguments))
        except ArithmeticError:
            values.append(None)
    return values


def _draw(spec: dps.Spec, phases: Sequence[Steps], kappas: Sequence[float]) -> tuple[Estimate, ...]:
    drawn = Comparisons.of(spec.mechanism.options).monte_carlo
    if drawn is None:
        return ()
    revealed = revealed_probability(phases)
    estimates = montecarlo.gammas_monte_carlo(kappas, noisy_steps(phases), *drawn)
    return tuple(
        Estimate(
            value=with_revealed(estimate.value, revealed),
            standard_error=(1.0 - revealed) * estimate.standard_error,
            interval=Interval(
                with_revealed(estimate.interval.lower, revealed), with_revealed(estimate.interval.upper, revealed)
            ),
        )
        for estimate in estimates
    )
