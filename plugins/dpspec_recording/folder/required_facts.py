"""The facts that the recorder always notes for a kind of training.

A test on a missing fact would be omitted without a word. Each rank and each part of a training is read alone, because
their joined facts are read from the folders that have them.
"""

from dataclasses import replace

from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.header import Header
from dpspec_recording.folder.seen_steps import SeenSteps
from dpspec_recording.folder.stated_fact import StatedFacts


def with_lacking(facts: Facts, header: Header, steps: SeenSteps, stated: StatedFacts) -> Facts:
    """The facts of a folder with the names of those that it lacks."""
    shown = [fact for fact in stated if facts.of(fact) is None and fact.is_shown(header)]
    lacking = [fact.name for fact in shown if fact.is_required(header, steps)]
    return replace(facts, lacking=tuple(lacking))
