"""What changes the noisy gradient between its noise and the update.

The mistake: a factor, a mask or a scale that the script computes from the records of the batch::

    optimizer.pre_step()
    scale = 1.0 / clean_gradient_norm(batch)
    for p in model.parameters():
        p.grad *= scale

A map of the noisy gradient alone (a mask, a projection) is a post-processing, which costs no privacy. Replays show
which of both it is: the noisy gradient stays as executed, other records are in the batch, and the gradients must not
move. Which further tensors are public no recording shows, so that these leave the claim open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpspec.text import several
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradients
from dpspec_recording.observers.update_rule.reported_gradients import ReportedGradients
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.issue import Statement, doubted
from dpspec_recording.step_replay.facts import MapFacts

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun


class GradientMap(Observer[MapFacts]):
    """Notes the maps that the replayer of the training finds."""

    name, kind = "maps", MapFacts

    def start(self, training: Training) -> None:
        """Keep the replayer."""
        self._replayer: Any = training.replayer

    def facts(self) -> MapFacts:
        """The maps until now; none if no step of the training can be replayed."""
        if self._replayer is None:
            return MapFacts(explained=0, by_all=0, replayed=0, moved=0, public=0, inputs="")
        facts: MapFacts = self._replayer.maps.facts
        return facts

    @staticmethod
    def judge(facts: MapFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """A map that reads more than the noisy gradient, or that some steps have, is a question to the user."""
        if facts is None:
            return
        explained, without = facts.explained, max(0, compared_steps(run) - facts.by_all)
        if (steps := run.mapped_steps) and facts.public == facts.replayed:
            text = (
                f"; {several(steps, 'inspected step')} added gradients after the noise, which read the declared public "
                f"data alone at {several(facts.public, 'replayed step')}"
            )
            yield stated("gradient-map", text)
        elif steps:
            reads, declared = "varies", ""
            if facts.inputs:
                reads = f"reads tensors of shape {facts.inputs} (a mask, a matrix, parameters, a public batch?)"
                declared = "declare a public batch by public= of dpspec.record or --public-data; "
            text = (
                f", but the update of {several(steps, 'inspected step')} got other gradients than the noisy sum over "
                f"the divisor. What changes them {reads}, and {several(facts.replayed, 'replay')} with other records "
                f"moved none: {declared}if it depends on no record, --assume gradient-map"
            )
            yield doubted("gradient-map", text)
        elif explained and facts.moved:
            text = (
                f", but of {several(facts.replayed, 'replay')} {facts.moved} changed it with the noisy gradient as "
                "executed: compute it from the noisy gradient alone"
            )
            yield doubted("gradient-map", text)
        elif explained and without:
            text = (
                f", but {several(explained, 'step')} changed it and {without} did not: if no record chose the steps, "
                "as by the loss of a batch, --assume gradient-map"
            )
            yield doubted("gradient-map", text)
        elif explained:
            text = f"; {several(explained, 'step')} changed it by operations that read nothing else"
            yield stated("gradient-map", text)


def compared_steps(run: JudgedRun) -> int:
    """The number of steps whose gradients were compared."""
    noisy, reported = run.fact(NoisyGradients), run.fact(ReportedGradients)
    return noisy.compared if noisy is not None else 0 if reported is None else reported.summed
