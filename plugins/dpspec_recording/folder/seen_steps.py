"""Kinds of values in the steps of a folder, by which its reader knows the facts that it must have."""

from dpspec_recording.folder.step_record import UNSEEN, PublicStep


class SeenSteps:
    """Whether rows of gradients, declared noise or drawn records were observed at some step of a folder."""

    def __init__(self) -> None:
        self.rows = self.noise = self.drawn = False

    def add(self, step: PublicStep) -> None:
        self.rows |= 0 < step.rows < UNSEEN
        # noise that is declared as none, such as the rounding of a difference, has no size to compare it with
        self.noise |= step.noise_squares > 0.0 and step.noise_multiplier != 0.0
        self.drawn |= step.drawn != UNSEEN
