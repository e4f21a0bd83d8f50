"""The form of an observer, which owns one fact of a training: it observes, states, merges and judges it.

The smallest observer counts the updates of a training, and judges that there was one for each step:

>>> from types import SimpleNamespace
>>> from dpspec_recording.outcomes.faults import Fault
>>> TWICE = Fault(
...     name="further-updates",
...     condition="update-rule",
...     title="updates beyond one for each step",
...     observed="measured",
...     source="https://github.com/google-deepmind/jax_privacy/issues/288",
...     advice="Call the optimizer's step once for each batch.",
... )
>>> @dataclass(frozen=True)
... class UpdateCount:
...     updates: int
>>> class Updated(Observer[UpdateCount]):
...     name, kind = "updated", UpdateCount
...
...     def start(self, training):
...         self._count = 0
...
...     def after_update(self):
...         self._count += 1
...
...     def facts(self):
...         return UpdateCount(updates=self._count)
...
...     @staticmethod
...     def judge(facts, run):
...         yield TWICE.none_found(facts.updates - run.steps)
>>> [outcome.check.p_value for outcome in Updated.judge(UpdateCount(updates=5), SimpleNamespace(steps=4))]
[0.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dpspec_recording.folder.facts import StatedFact

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dpspec_recording.audited_steps import AuditedSteps
    from dpspec_recording.folder.events import Header
    from dpspec_recording.observers.judged_run import JudgedRun, Terms
    from dpspec_recording.outcomes.issue import Issue, Statement
    from dpspec_recording.parts import Parts
    from dpspec_recording.pending_step import PendingStep
    from dpspec_recording.ranks.rank_watch import RankWatch
    from dpspec_recording.step_replay.calls import Pauses
    from dpspec_recording.watching.noise_sketch import MeasuredNoise, NoiseSketch
    from dpspec_recording.watching.parameter_watch import ParameterWatch
    from dpspec_recording.watching.sampler_watch import SamplerWatch

F = TypeVar("F")

#: An observation of the recorder.
Observation = Callable[[], None]


@dataclass
class Training:
    """A training as its observers see it.

    Attributes:
        script_parts: The arguments of ``dpspec.record``.
        optimizer: Torch's, which makes the updates; None without one.
        private_optimizer: Opacus'; None for a custom loop.
        trained: All parameters that may move.
        parameters: Whether they moved since the last step.
        rank: The observer of this process among several; None in a single one.
        audits: Says whether the present step is audited, so that an observer may read the values of tensors.
        guarded: Makes an observation from a hook: its exceptions end the recording, never the training.
        undo: Takes the functions that remove hooks.
        pauses: Counts the observations that run now, whose operations belong to no step.
        samples: The observer of the drawn records; None without.
        sketch: Measures the noise of a step.
        is_recording: Whether the recording continues: the training may outlive it.
        begin_update: The optimizer begins an update: emits the event, and returns whether parameters moved before.
        private_options: Returns the options of the private sum.
        accumulates: Whether the optimizer has got a physical batch of a step that is not complete.
        write: Writes a step that is over.
        step: The step that is not over.
        header: Of the recording.
        part: The number of this part of a resumed training, from 1.
        options: The observer of all options, which the states of the training have, too.
        clipped: The observer of the gradients that Opacus clips; None for a custom loop.
        replayer: Repeats some steps with other records; None for trainings that cannot be repeated.
        reported: By quantity the row of all coordinates that a custom loop reported for the step.
        explain: Whether a map of the noisy gradients gives the gradients at a place in the step, as replays show;
            they may be unchanged.
        moved: Whether parameters moved between the last step and the update that begins.
        is_gradient_compared: Whether the gradients within the update that ended were compared with those before it.
        frozen_digest: Of the buffers and frozen parameters at the beginning.
        observe_backward: A backward pass of whole parameters, which one rank holds rows of, begins.
    """

    script_parts: Parts
    optimizer: torch.optim.Optimizer | None
    private_optimizer: Any
    trained: Sequence[Tensor]
    parameters: ParameterWatch
    rank: RankWatch | None
    audits: AuditedSteps
    guarded: Callable[[Observation], None]
    undo: ExitStack
    pauses: Pauses
    samples: SamplerWatch | None
    sketch: NoiseSketch
    is_recording: Callable[[], bool]
    begin_update: Callable[[], bool | Tensor]
    private_options: Callable[[], Mapping[str, Any]]
    accumulates: Callable[[], bool]
    write: Callable[[PendingStep], None]
    step: PendingStep
    header: Header
    part: int = 1
    options: Any = None
    clipped: Any = None
    replayer: Any = None
    reported: Mapping[str, Tensor] = field(default_factory=dict)
    explain: Callable[[str, Sequence[Tensor], Sequence[Tensor], bool], bool] = lambda *_: False
    moved: bool | Tensor = False
    is_gradient_compared: bool = False
    frozen_digest: str = ""
    observe_backward: Observation = lambda: None


class Observer(StatedFact[F]):
    """Owns one fact of a training. Its events do nothing by default.

    Attributes:
        needs: The event without which a training does not show the fact, if not all have it.
    """

    needs: ClassVar[str] = ""

    @classmethod
    def is_shown(cls, header: Header) -> bool:
        """Whether this kind of training shows the fact. Observers of others do not observe it, nor judge it."""
        return not cls.needs or emits(header, cls.needs)

    def start(self, training: Training) -> None:
        """The recording begins: prepare for the events, and attach hooks until ``training.undo`` ends them."""

    def before_clip(self) -> None:
        """Opacus clips the gradients of a physical batch now."""

    def before_sum(self) -> None:
        """Opacus adds the clipped gradients of a physical batch to the sum of the step now."""

    def after_sum(self) -> None:
        """The sum has these gradients; of audited steps only."""

    def before_noise(self) -> None:
        """Opacus adds noise to the sum now."""

    def after_noise(self) -> None:
        """The sum has its noise, and the step states its size."""

    def noise_measured(self, measured: MeasuredNoise, deviations: Sequence[float]) -> None:
        """The noise of k steps was measured, with its declared standard deviations; steps may wait for it."""

    def before_reduction(self) -> None:
        """The ranks add up their noisy sums now."""

    def after_reduction(self) -> None:
        """Each rank has the sum of all."""

    def before_update(self) -> None:
        """The optimizer begins an update."""

    def after_update(self) -> None:
        """The optimizer ends an update."""

    def after_report(self) -> None:
        """A custom loop has reported all of its step."""

    def after_step(self, step: PendingStep) -> None:
        """A step is over. Its noise may not be read yet."""

    def facts(self) -> F | None:
        """The fact until now; None if this training does not show it."""
        return None

    def cautions(self, steps: int, delta: float) -> tuple[str, ...]:
        """The names of the rules that give a caution on a claim about the steps until now."""
        return ()

    @staticmethod
    def judge(facts: F | None, run: JudgedRun) -> Iterator[Statement]:
        """The statements on the fact. None: the recording lacks it, or the training did not show it."""
        return iter(())

    @staticmethod
    def ask(facts: F | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """The questions to a person, which depend on the claim."""
        return iter(())


#: The names of all events.
EVENTS = (
    *("before_clip", "before_sum", "after_sum", "before_noise", "after_noise", "noise_measured"),
    *("before_reduction", "after_reduction", "before_update", "after_update", "after_report", "after_step"),
)


#: By the source of a recording, the events that its adapter emits, and not all do.
_EMITTED: Mapping[str, tuple[str, ...]] = {
    "opacus": ("before_clip", "before_sum", "after_sum", "before_noise", "after_noise"),
    "own-loop": ("after_report",),
}


def emits(header: Header, event: str) -> bool:
    """Whether the adapter of a training emits an event that not all do."""
    return event in _EMITTED[header.source]


class Events:
    """Calls the observers that observe an event, in their order: a step calls no method that does nothing."""

    def __init__(self, observers: Sequence[Observer[Any]]) -> None:
        self._observers: dict[str, list[Callable[..., None]]] = {event: [] for event in EVENTS}
        for event, called in self._observers.items():
            nothing = getattr(Observer, event)
            owners = [owner for owner in observers if getattr(type(owner), event) is not nothing]
            called += [getattr(owner, event) for owner in owners]

    def emit(self, event: str, *observed: Any) -> None:
        """Call the observers of an event with its values."""
        for observe in self._observers[event]:
            observe(*observed)
