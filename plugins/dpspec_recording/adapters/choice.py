"""The adapter of each kind of training."""

from dpspec_recording.adapters.adapter import Adapter
from dpspec_recording.adapters.custom_loop import CustomLoop
from dpspec_recording.adapters.opacus import OpacusTraining
from dpspec_recording.folder.events import Header
from dpspec_recording.parts import Parts
from dpspec_recording.planting.planted import GradientCanaries
from dpspec_recording.step_replay.calls import Pauses


def adapter_of(training_parts: Parts, header: Header, pauses: Pauses, canaries: GradientCanaries | None) -> Adapter:
    """The adapter of a training. canaries: those that enter its sums."""
    if training_parts.is_custom_loop:
        return CustomLoop(training_parts, header, pauses)
    return OpacusTraining(training_parts, canaries)
