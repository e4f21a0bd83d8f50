"""Rules: what dpspec notices in a recorded training, which plugins extend with the hook ``dpspec_rules``.

A rule that fires is a caution. The verdict stays, and the exit code is 1 until the cause is gone or the user accepts
the rule by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np

F = TypeVar("F")

#: The source of a rule or fault without a public incident: two people made the mistake while they used dpspec.
MADE_TWICE = "two people who used dpspec"

#: The rule on delta, which holds for each claim, of a recorded run or of a spec.
LARGE_DELTA = "large-delta"
LARGE_DELTA_WHY = "Publishing one record in full satisfies such a claim."
LARGE_DELTA_FIX = "Claim a delta well below 1 over the number of records."


def large_delta(delta: float, records: int) -> str:
    """The caution on a delta that is not below 1 over the number of records; empty below."""
    return f"delta = {delta:g} is not below 1 over the {records} records." if delta * records >= 1.0 else ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule. ``code`` names a subclass of :class:`TrainingRule` without constructor arguments.

    Attributes:
        name: Lower-case letters, digits and hyphens; ``--accept``, ``--select`` and ``--ignore`` take it.
        summary: The observed mistake.
        why: Why this matters for privacy.
        fix: The change that removes the cause.
        source: An example of the mistake: the URL of a public incident (an issue, a pull request, a paper, a
            shipped example), a package with its version, or :data:`MADE_TWICE`. Rules of dpspec have one.
    """

    name: str
    summary: str
    why: str
    fix: str
    code: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class RuleSetup:
    """The objects of a training at the beginning of its recording.

    Attributes:
        model: The module that the script passed.
        optimizer: The optimizer of torch, inside Opacus' optimizer if there is one; None for a loop without one.
        private_optimizer: Opacus' optimizer; None for a custom loop.
        loader: The loader; None without.
        resumes: Whether the recording continues an earlier part.
        compiled: Whether the model is compiled, so that it gets no hooks of rules.
        replayer: For dpspec's own rules: the object that replays steps; None if no step can be replayed.
        earlier: For dpspec's own rules: the weights that the script trained before the recording.
    """

    model: Any
    optimizer: Any = None
    private_optimizer: Any = None
    loader: Any = None
    resumes: bool = False
    compiled: bool = False
    replayer: Any = None
    earlier: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RuleStep:
    """One recorded step.

    Attributes:
        number: Counted from 1.
        drawn: The indices of the drawn records; None if they were not observed.
        norms: The clipped norms that a custom loop reported, (b,); None for others.
        noise: The noise that a custom loop reported, a flat tensor; None for others.
        clip_norm: NaN if it was not observed.
        noise_generators, batch_generators: Generators of torch from which the reported noise, and the indices of the
            drawn records, of a custom loop follow; empty if the step was not traced.
    """

    number: int
    drawn: np.ndarray[Any, Any] | None
    norms: np.ndarray[Any, Any] | None
    clip_norm: float
    noise: Any = None
    noise_generators: tuple[Any, ...] = ()
    batch_generators: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RuleRun:
    """The recorded run as the rules see it. Unobserved counts have the value None.

    Attributes:
        own_loop: Whether the script clips and adds noise itself, without Opacus.
        delta, group_size: Of the claim.
        rate: The Poisson sampling rate; None for other batches.
        drawn_batches, used_batches: All batches that the sampler drew, and those that a step used.
        passed_over: The number of times that batches were passed over before later ones were used.
        empty_steps: The number of steps with an empty batch.
        drawn_records, gradient_rows: Sums over the steps with both counts.
        zero_quarter_steps, norm_steps: Steps in which at least a quarter of the gradient norms is exactly 0, and all
            steps of at least four observed norms.
    """

    own_loop: bool
    steps: int
    delta: float
    group_size: int = 1
    records: int | None = None
    rate: float | None = None
    drawn_batches: int | None = None
    used_batches: int | None = None
    passed_over: int | None = None
    empty_steps: int | None = None
    drawn_records: int | None = None
    gradient_rows: int | None = None
    zero_quarter_steps: int = 0
    norm_steps: int = 0


class TrainingRule(Generic[F]):
    """The code of a rule: it observes a training, and judges the observed facts. All methods do nothing by default.

    A rule may register public hooks of torch in :meth:`start` and removes them in :meth:`stop`. It draws no random
    number, changes no tensor, and its exceptions end the rule, never the training.

    The smallest rule fires if a training has fewer steps than a pass over its records should have:

    >>> @dataclass(frozen=True, kw_only=True)
    ... class DrawnFacts:
    ...     drawn: int
    >>> class FewDrawn(TrainingRule[DrawnFacts]):
    ...     kind = DrawnFacts
    ...
    ...     def __init__(self):
    ...         self._drawn = 0
    ...
    ...     def after_step(self, step):
    ...         self._drawn += len(step.drawn)
    ...
    ...     def facts(self):
    ...         return DrawnFacts(drawn=self._drawn)
    ...
    ...     @staticmethod
    ...     def caution(facts, run):
    ...         return f"{facts.drawn} records were drawn." if facts.drawn < run.records else ""
    >>> FewDrawn.caution(DrawnFacts(drawn=8), RuleRun(own_loop=False, steps=2, delta=1e-5, records=100))
    '8 records were drawn.'

    Attributes:
        kind: The frozen dataclass of the facts, with fields of numbers, texts, tuples, mappings and such dataclasses.
            Without it, the facts are a mapping of short JSON values.
        early: Whether the facts of the first step suffice: the rule then also warns during the training, once.
    """

    kind: ClassVar[Any] = Mapping[str, Any]
    early: ClassVar[bool] = False

    def start(self, setup: RuleSetup) -> None:
        """Begin to observe."""

    def after_step(self, step: RuleStep) -> None:
        """Observe a step."""

    def stop(self) -> None:
        """Remove all hooks; also called after an exception."""

    def facts(self) -> F:
        """Observed facts of this kind, which the folder of the run keeps."""
        none: Any = {}
        return none  # type: ignore[no-any-return]

    @staticmethod
    def caution(facts: F, run: RuleRun) -> str:
        """One sentence with numbers if the rule fires; "" if not. It needs no torch."""
        return ""
