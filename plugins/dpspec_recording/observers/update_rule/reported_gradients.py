"""The gradients of a custom loop, and the sum and the noise that it reports.

The mistake: the loop reports noise that it does not add, or adds a sum that it does not report::

    noise = torch.randn_like(total)
    run.noised(noise)
    p.grad = (total + 0.1 * noise) / batch

At a step the optimizer gets g = (S + n) / D, with S the sum of clipped gradients, n the noise and D a divisor.
:class:`dpspec_recording.sums.loop_gradients.LoopGradients` fits D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from dpspec_recording.folder.merging import Count, Number, join_by
from dpspec_recording.observers.loop_arguments import omitted_arguments
from dpspec_recording.observers.noise.noise import Noise, untested_tails
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.observers.sensitivity.replays import why_not_replayed
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

#: The largest fraction of a layer's noise that rounding may hide.
_HIDDEN = 0.1

#: Ranks are Opacus' alone, so that the first row is the only one.
_FIRST = join_by(itemgetter(0), sum)


@dataclass(frozen=True, kw_only=True)
class GradientFacts:
    """Steps whose gradients were compared with a loop's reports. summed: with a reported sum; different: with other
    gradients than sum and noise; hidden: the length of noise that rounding can hide, in standard deviations."""

    steps: Count = field(metadata=_FIRST)
    summed: Count = field(metadata=_FIRST)
    different: Count = field(metadata=_FIRST)
    hidden: Number = field(metadata=join_by(itemgetter(0), max))


OTHERS = Fault(
    name="noise-not-in-gradients",
    condition="update",
    title="gradients other than the reported sum and noise",
    observed="measured",
    source="https://github.com/NVIDIA/NVFlare/issues/462",
    advice=(
        "The optimizer's gradient must be (run.summed + run.noised) / divisor: noise is missing, a term was added, "
        "or the sum was reported after the noise. Move weight decay and momentum into the optimizer."
    ),
)


class ReportedGradients(Observer[GradientFacts]):
    """Copies the gradients before the optimizer steps, and compares them when the loop reports the step."""

    name, kind, needs = "gradients", GradientFacts | None, "after_report"

    def start(self, training: Training) -> None:
        """Keep the parameters of a loop that reports."""
        from dpspec_recording.sums.loop_gradients import LoopGradients

        self._training, self._gradients = training, LoopGradients(training.script_parts.noisy_parameters())

    def before_update(self) -> None:
        """Keep the gradients."""
        self._gradients.before_step()

    def after_update(self) -> None:
        """Forget them if the update changed them."""
        from dpspec_recording.watching.optimizer_updates import adds_in_place

        self._gradients.after_step(added=adds_in_place(self._training.optimizer))

    def after_report(self) -> None:
        """Compare them with the reports, and note the divisor of the step."""
        training = self._training
        noise, total = training.reported.get("noise"), training.reported.get("the sum")
        self._gradients.compare(
            training.step, noise, total, lambda *rows: training.explain("", list(rows[:2]), list(rows[2:]), True)
        )

    def facts(self) -> GradientFacts | None:
        """None if no gradient was compared."""
        if not self._gradients.steps:
            return None
        compared = self._gradients
        counts = {"steps": compared.steps, "summed": compared.summed, "different": compared.different}
        return GradientFacts(**counts, hidden=compared.hidden)

    @staticmethod
    def judge(facts: GradientFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """All gradients must be sum and noise over a divisor, and each step must report both."""
        if facts is not None and facts.summed and run.internal is not None:
            changed = 0 if run.mapped_steps else facts.different  # the assumption gradient-map asks about mapped ones
            yield OTHERS.none_found(changed, f"sum and noise over a divisor, at {facts.summed} steps")
        doubt = why_noise_unconfirmed(run)
        text = f"; the recording does not confirm the reported noise in the gradients: {doubt}" if doubt else ""
        yield doubted("loop-reports", text) if doubt else stated("loop-reports", text)

    @staticmethod
    def ask(facts: GradientFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """The reports of a loop must be true."""
        tails = untested_tails(run.fact(Noise))
        its_tails = (
            f", and the noise is Gaussian in all directions, of one size for all batches, and {tails}" if tails else ""
        )
        sentences = [
            "each record enters each step by its own coin with the one declared rate (no buckets, strata, households, "
            "turns, hash, list or loss); the loop reports every drawn batch, and skips, cuts and fills none",
            "the loop's norms (after all weights), sums and noise are true, "
            f"no loss or norm decides that noise is drawn again, no key or random number has two uses{its_tails}",
        ]
        if run.header.federated:
            sentences.append(
                "the update of a client follows from the global model and its own data alone: from no other client's "
                "update, control variate, statistic or loss; later rounds use nothing of it without noise"
            )
        if run.has_arrays:
            sentences.append(
                "the reported arrays are the whole model: no statistic of batches (batch_stats), average or other "
                "state that records move is used or released"
            )
        if terms.adjacency == "add-remove":
            sentences.append("no weight, factor or clipping of a record follows the number of records in its batch")
        if why_not_replayed(run):
            sentences.append(
                "each record's gradient is clipped by its l2 norm over all layers, and the reported norm is of the "
                "clipped gradient in the sum: clipping by coordinates or layers leaves longer ones, which a norm "
                "capped at the clip norm does not show"
            )
        yield from (asked("loop-reports", sentence) for sentence in sentences)


def why_noise_unconfirmed(run: JudgedRun) -> str:
    """Why reported noise was not confirmed in the gradients, and the fix; empty if it was.

    It is confirmed if every step reports its sum, and the gradient is sum and noise up to rounding that would hide no
    layer's noise. A check tests that the sum does not correlate with the noise.
    """
    if not run.header.optimizer:
        return "dpspec.record got no optimizer and inspected no gradient: give optimizer="
    gradients, zero = run.fact(ReportedGradients), run["noise_squares"] == 0.0
    if zero.any():
        return f"the reported noise is zero at {int(zero.sum())} of {run.steps} steps"
    compared = gradients is not None and gradients.steps
    if not compared and (omitted := omitted_arguments(run, "noise_multiplier", "clip_norm")):
        return f"noise of unknown size was not compared, because {omitted}"
    if gradients is None or not gradients.steps:
        return (
            "no gradient could be compared with it: report norms and noise, and let the given optimizer step once, "
            "before run.stepped(), with gradients that exist when step() is called, not with gradients of a closure; "
            "a loop on arrays gives them as run.stepped(parameters=..., gradients=...)"
        )
    if gradients.summed < gradients.steps:
        return "the loop does not report the sum, so a part of the noise may be missing: call run.summed"
    if gradients.steps < run.covered_steps:
        return f"only {gradients.steps} of {run.covered_steps} steps could be compared with their gradients"
    if gradients.different and not run.mapped_steps:
        return f"gradients of {gradients.different} steps are not the reported sum and noise"
    smallest = min((size for _, size in run.header.layers), default=1)
    coarse = gradients.hidden > _HIDDEN * math.sqrt(smallest)
    return "gradients are rounded so coarsely that noise could be missing in a layer" if coarse else ""
