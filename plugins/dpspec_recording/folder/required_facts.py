"""The facts that the recorder always notes for a kind of training.

A test on a missing fact would be omitted without a word. Each rank and each part of a training is read alone, because
their joined facts are read from the folders that have them.
"""

from dataclasses import replace

from dpspec_recording.folder.facts import Facts
from dpspec_recording.folder.header import Header
from dpspec_recording.folder.step_record import UNSEEN, PublicStep


class SeenSteps:
    """Whether rows of gradients, noise or drawn records were observed at some step of a folder."""

    def __init__(self) -> None:
        self.rows = self.noise = self.drawn = False

    def add(self, step: PublicStep) -> None:
        self.rows |= 0 < step.rows < UNSEEN
        self.noise |= step.noise_squares > 0.0
        self.drawn |= step.drawn != UNSEEN


def with_lacking(facts: Facts, header: Header, steps: SeenSteps) -> Facts:
    """The facts of a folder with the names of those that it lacks."""
    opacus, has_optimizer = header.source == "opacus", header.optimizer != ""
    required = {
        "updates": has_optimizer and not facts.optimizer,  # it has a name if its updates are not recomputed
        "restated": has_optimizer,
        "passes": has_optimizer,
        "meddled": opacus,
        "sums": opacus,
        "seeds": opacus,
        "clip_limits": opacus and steps.rows,
        "ghost": header.clipping == "ghost",
        "adaptive": header.clipping == "adaptive",
        "noise": steps.noise,
        "replays": not facts.replay_failure,
        "maps": facts.replays is not None,
        "drawn_batches": opacus and steps.drawn,
        "passed_over": opacus and steps.drawn,
        "history": header.accountant != "",
        "rules": True,
    }
    lacking = [name for name, needed in required.items() if needed and getattr(facts, name) is None]
    return replace(facts, lacking=tuple(lacking))
