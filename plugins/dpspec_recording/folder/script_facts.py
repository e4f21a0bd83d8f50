"""The script around a recording: facts that a recorder of whole scripts notes after the end of the recording."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpspec.text import several
from dpspec_recording.folder.merging import Count, Text

#: The largest number of optimizers, of other trainings, and of steps that are listed.
MOST_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class OtherSteps:
    """Steps of an optimizer of torch that no recording of the script has.

    Attributes:
        optimizer: Its class.
        steps: Their number.
        on_model: Whether it has tensors of the recorded model.
        common: Whether some were made in loops over some of the recorded records; False if all were in loops over
            others, None if that is not known.
    """

    optimizer: Text
    steps: Count
    on_model: bool
    common: bool | None = None

    def phrase(self, when: str) -> str:
        """The steps in words. when: ``before`` or ``after``."""
        on_model = " on tensors of the model" if self.on_model else ""
        return f"{several(self.steps, 'step')} of {self.optimizer}{on_model} {when} this training"


@dataclass(frozen=True, kw_only=True)
class OtherTraining:
    """Another private training in the same process of the script.

    Attributes:
        folder: The name of its folder, in the same parent folder.
        common: Whether both draw from some of the same records; None if that is not known.
    """

    folder: Text
    common: bool | None


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """The script around a recorded training.

    Attributes:
        whole: Whether the recorder watched the script from its first line; not if it was imported later.
        before, after: Steps of other optimizers before the recording began, and after its end. Those in between are
            facts of the recording. Before a later part these are the steps since the end of the part before it.
        between: Those between the parts of the recording.
        returned: The number of loads of an earlier step's weights into the model of a federation's client.
        missed: The number of steps of the recorded optimizer that the recording does not have.
        peers: Other private trainings.
        read: The steps after which ``state_dict()`` of the recorded model was called, the last ones if there are many.
    """

    whole: bool
    before: tuple[OtherSteps, ...] = ()
    between: tuple[OtherSteps, ...] = ()
    after: tuple[OtherSteps, ...] = ()
    returned: Count = 0
    missed: Count = 0
    peers: tuple[OtherTraining, ...] = ()
    read: tuple[Count, ...] = ()

    def steps_on_records(self, *, after: bool = True) -> list[str]:
        """In words, the steps in loops over some of the recorded records. after: also those after the recording."""
        of_before = [steps.phrase("before") for steps in self.before if steps.common]
        return [*of_before, *(steps.phrase("after") for steps in self.after if steps.common and after)]


def of_parts(scripts: Sequence[ScriptFacts]) -> ScriptFacts:
    """The script around all parts of a recording, at least one.

    The numbers of the steps after which the weights were read count from the beginning of each part, so they are left
    out.
    """
    peers = {peer.folder: peer for script in scripts for peer in script.peers}
    return ScriptFacts(
        whole=all(script.whole for script in scripts),
        before=scripts[0].before,
        between=tuple(steps for script in scripts[1:] for steps in script.before)[:MOST_LISTED],
        after=scripts[-1].after,
        returned=sum(script.returned for script in scripts),
        missed=sum(script.missed for script in scripts),
        peers=tuple(peers.values())[:MOST_LISTED],
    )
