"""The section ``recording`` of a result: setup, cautions, executed schedule, accountant, advice and channels.

The epsilon of the script's own accountant is recomputed, with the reason for its difference from the executed one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from dpspec.accounting import Mixture, PrivacyLoss, sampled_gaussian_rdp
from dpspec.contract import Assumption, Check
from dpspec.engine.judging.conformance_status import rejected
from dpspec.engine.recorded.bounds import CanaryBound, ScheduleEpsilon, configured_multipliers, phases_of
from dpspec.engine.recorded.channels import assumes, channels
from dpspec.engine.recorded.checks import advice
from dpspec.engine.recorded.joined_checks import seam_notes
from dpspec.engine.recorded.noise_checks import why_noise_unconfirmed
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.engine.results.decimals import duration, exact, nearest
from dpspec.engine.results.recording import AccountantReport, Recording
from dpspec.recording.folder.header import NEW_TOKENS
from dpspec.stats.attacks.curve_lines import gaussian_epsilon

#: Kinds of canaries that repeat records or their beginnings.
_REPEATED = ("mislabelled", "duplicate", NEW_TOKENS)

#: Maximum number of phases that a result lists.
_MOST_PHASES = 200


def section(
    run: RecordedRun,
    *,
    digest: str,
    checks: Sequence[Check],
    assumptions: Sequence[Assumption],
    delta: float,
    cost: ScheduleEpsilon,
    infinite: bool,
    canaries: CanaryBound | None,
    assumed: tuple[str, ...],
    public: tuple[str, ...],
) -> Recording:
    phases, bad = phases_of(run), [check for check in checks if rejected(check, len(checks))]
    found = channels(checks, assumptions)
    reports = _reports_batches(run)  # such a loop needs no loader
    notes = []
    if canaries is not None and canaries.constant:
        notes.append(
            f"All {canaries.canaries} canaries have the same score, so the attack shows nothing: check that the loss "
            "depends on the model and on the record."
        )
    if canaries is not None and canaries.above:
        notes.append("The lower bound from canaries exceeds the certified bound: nothing is proved.")
    return Recording(
        steps=run.steps,
        ended=run.end is not None,
        setup=(*_setup(run), f"SHA-256 of the recorded files: {digest}"),
        cautions=(*notes, *cautions(run, delta, infinite=infinite)),
        unrecognized=tuple(
            note for note in run.header.notes if not (reports and note.startswith("no loader was given"))
        ),
        phases=tuple(phases[:_MOST_PHASES]),
        more_phases=max(0, len(phases) - _MOST_PHASES),
        accountant=accountant_report(run, delta, cost),
        advice=tuple(dict.fromkeys(words for check in bad if (words := advice(check, bad)))),
        channels=found,
        assumes=assumes(found),
        assumed=assumed,
        public=public,
    )


def cautions(run: RecordedRun, delta: float, *, infinite: bool) -> Iterator[str]:
    header = run.header
    if infinite:
        yield "No epsilon is finite, so no claim about this run can be proved."
    if run.end is None:
        yield (
            "The recording has no end: the process was killed, an error ended it (dpspec.record warned), or it is "
            f"still running. The result covers its first {run.steps} steps only."
        )
    if header.canaries and not (run.scored is not None and run.folder.has_canaries):
        why = "not scored: run.score was not called, or it raised"
        why = why if run.scored is None else "scored, but the folder lacks their scores"
        yield (
            f"The result of the attack by canaries is missing: {header.canaries} canaries were inserted and {why}. The "
            "model's leakage was not measured."
        )
    if run.scored is not None and not run.scored.final:
        yield (
            "The scored model differs from the one at the end of the recording. The results for the recorded steps do "
            "not apply to it."
        )
    if header.source == "own-loop" and (why := why_noise_unconfirmed(run)):
        yield f"Only the loop's report shows that the noise is in the model updates: {why}."
    if header.told_before:
        yield (
            f"The accountant had counted {header.told_before} steps when the recording began: it shows a part of the "
            "training."
        )
    elif run.at_end("resumed") is True:
        yield "The optimizer had made steps when the recording began: it shows a part of the training."
    elif not header.accountant:
        yield "The recorder got no accountant, so steps before the recording were not checked."
    if header.canary_kind in _REPEATED:
        yield (
            f"Canaries of kind {header.canary_kind} repeat records: a person may be in the training with a record and "
            "a canary. Results for single records cover each separately; see groups."
        )
    if header.records is not None and delta * header.records >= 1.0:
        yield (
            f"delta = {exact(delta)} is not below 1 over the {header.records} records: publishing one random record "
            "would satisfy such a claim."
        )
    yield from seam_notes(run)
    if excess := run.norm_excess:
        yield (
            f"Gradients were clipped in {run.at_end('norm_type')}: rounding lets them be up to "
            f"{nearest(100 * excess)}% longer than the clip norm, and each noise multiplier is reduced by that factor."
        )


def _reports_batches(run: RecordedRun) -> bool:
    return run.header.source == "own-loop" and bool((run["drawn"] >= 0).any())


def _setup(run: RecordedRun) -> Iterator[str]:
    """Yield sentences without a full stop."""
    header = run.header
    seconds, error = run.at_end("seconds"), run.at_end("error")
    took = f" in {duration(float(seconds))}" if isinstance(seconds, int | float) else ""
    steps = f"{run.steps} step{'' if run.steps == 1 else 's'} recorded"
    if run.end is None:
        yield f"{steps}; the recording has no end"
    else:
        yield f"{steps}{took}" + (f", ended by {error}" if isinstance(error, str) and error else "")
    inner = f" around {header.inner}" if header.inner else ""
    clipping = f", {header.clipping} clipping" if header.source == "opacus" else ", a custom loop"
    clipping += f", in {header.world} processes" if header.world else ""
    yield f"{header.model} of {header.parameters} parameters; {header.optimizer or 'no optimizer'}{inner}{clipping}"
    kind = "batches of an unknown kind" if header.scheme == "unknown" else f"{header.scheme} batches"
    batches = f"{kind} ({header.sampler})"
    if header.scheme == "none":
        batches = f"batches {'reported by the loop' if _reports_batches(run) else 'not observed'}, drawn"
    records = f" from {header.records} records" if header.records else ""
    ahead = f", loaded by {header.workers} processes" if header.workers else ""
    yield f"{batches}{records}{ahead}"
    if header.canaries:
        each = f" of {header.copies} equal records each" if header.copies > 1 else ""
        yield f"{header.canaries} canaries ({header.canary_kind}){each}, {header.left_out // header.copies} excluded"
    if header.canary_kind == NEW_TOKENS:
        yield "each included canary adds a record that ends in a token id that no other record has; " + (
            f"the canaries extend the model's vocabulary by {header.new_ids} ids"
            if header.new_ids
            else "the vocabulary is the model's own"
        )


#: The Renyi orders over which Opacus' RDP accountant minimizes.
_ORDERS = np.array([1.0 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)), dtype=np.float64)

#: Entries (noise multiplier, sampling rate, steps).
History = Sequence[tuple[float, float, int]]

#: Error margins of Opacus' PRV accountant: absolute in epsilon and relative in delta.
PRV_ERROR, _PRV_DELTA_ERROR = 0.01, 1e-3

#: Names of the accountants in sentences.
NAMES = {"rdp": "Renyi divergences (RDP)", "prv": "privacy loss random variables (PRV)", "gdp": "a central limit (GDP)"}


def accountant_epsilon(mechanism: str, history: History, delta: float) -> float | None:
    """Epsilon at ``delta`` as the accountant reports it; None for other mechanisms and for invalid histories.

    ``rdp``: min over Opacus' orders a of D_a + ln((a - 1) / a) - (ln delta + ln a) / (a - 1), with D_a summed over
    steps.
    ``gdp``: mu = q sqrt(T (e^(1 / s^2) - 1)) with Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2) = delta (Bu et al. 2020),
    which may be too small. ``prv``: the estimate of Opacus at 0.999 delta plus 0.01 for its error (Gopi et al. 2021);
    the estimate is the middle of the certified interval, to a relative 1e-4.
    """
    if not history or any(not (sigma > 0.0 and 0.0 < rate <= 1.0 and steps >= 1) for sigma, rate, steps in history):
        return None
    if mechanism == "rdp":
        rdp = sum(steps * sampled_gaussian_rdp(_ORDERS, rate, sigma) for sigma, rate, steps in history)
        gain = np.log1p(-1.0 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1.0)
        return max(0.0, float(np.min(rdp + gain)))
    if mechanism == "gdp":
        sigma, rate, steps = history[-1]
        return gaussian_epsilon(rate * math.sqrt(steps * math.expm1(min(sigma**-2, 700.0))), delta)
    if mechanism == "prv":
        interval = _composed(history).epsilon((1.0 - _PRV_DELTA_ERROR) * delta)
        return 0.5 * (interval.lower + interval.upper) + PRV_ERROR
    return None


def _composed(history: History) -> PrivacyLoss:
    return PrivacyLoss(tuple((Mixture.poisson(1, rate, sigma), int(steps)) for sigma, rate, steps in history))


#: Maximum number of entries of a history that is composed.
_MOST = 2000


def accountant_report(run: RecordedRun, delta: float, cost: ScheduleEpsilon) -> AccountantReport | None:
    mechanism = run.header.accountant
    if not mechanism:
        return None
    history = _history(run)
    epsilon = None
    if history is None or len(history) > _MOST:
        difference = "The recording lacks part of its history."
    elif not history:
        difference = "It counted no step."
    elif (epsilon := accountant_epsilon(mechanism, history, delta)) is None:
        difference = "Its history has no finite epsilon."
    else:
        difference = _difference(run, mechanism, history, epsilon, delta, cost)
    return AccountantReport(mechanism=mechanism, delta=delta, epsilon=epsilon, difference=difference)


def _history(run: RecordedRun) -> History | None:
    reported = run.at_end("history")
    if isinstance(reported, list):
        try:
            found = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in reported]
        except (TypeError, ValueError, OverflowError):
            return None
        sane = all(0.0 <= s < 1e9 and 0.0 <= q <= 1.0 and 0 <= n < 2**40 for s, q, n in found)
        return found if sane else None
    seen = zip(run["told_noise"].tolist(), run["told_rate"].tolist(), strict=True)
    counts = Counter(entry for entry in seen if not any(map(math.isnan, entry)))
    return [(sigma, rate, steps) for (sigma, rate), steps in counts.items()]


def _difference(
    run: RecordedRun, mechanism: str, history: History, epsilon: float, delta: float, cost: ScheduleEpsilon
) -> str:
    own = _composed(history).epsilon(delta).upper
    if other := _other_schedule(run, history):
        text = f"The accountant covers another schedule: {other}."
        executed = math.inf if cost.interval is None else cost.interval.upper
        if math.isfinite(executed):
            text += f" By PLD, its schedule has epsilon {own:.4g} and the executed schedule {executed:.4g}."
        return text
    excess, by, text = epsilon - own, NAMES.get(mechanism, mechanism), "The accountant covers the same phases."
    if mechanism == "prv":
        why = f"it adds {PRV_ERROR:g} to its {by} value as an error margin"
    elif abs(excess) < 5e-3 * max(own, 1e-3):
        return text
    else:
        why = f"it composes by {by}, not by PLD"
    return f"{text} Its value is {abs(excess):.3g} {'higher' if excess > 0.0 else 'lower'} because {why}."


def _other_schedule(run: RecordedRun, history: History) -> str:
    """How the schedule that the accountant counted differs from the executed one; empty if it does not."""
    noise, rates = configured_multipliers(run), run.rates
    executed = Counter((_rounded(sigma), _rounded(rate)) for sigma, rate in zip(noise, rates, strict=True))
    counted = Counter[tuple[float | None, float | None]]()
    for sigma, rate, steps in history:
        counted[_rounded(sigma), _rounded(rate)] += steps
    if counted == executed:
        return ""
    before = run.header.told_before
    parts = [
        f"it counted {sum(counted.values())} steps{f' ({before} before the recording)' if before else ''}, the run has "
        f"{run.steps}"
    ]
    for number, what in enumerate(("noise multiplier", "sampling rate")):
        its, own = ({key[number] for key in keys} for keys in (counted, executed))
        if its != own:
            parts.append(f"its {what} is {_range_text(its)}, the run's is {_range_text(own)}")
    if not run.header.is_poisson and run.header.scheme != "none":
        parts.append(f"the batches are {run.header.scheme}")
    return "; ".join(parts)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.9g}")


def _range_text(values: Collection[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return "unknown"
    return f"{known[0]:.4g}" if len(known) == 1 else f"{known[0]:.4g} to {known[-1]:.4g}"
