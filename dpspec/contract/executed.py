"""The section of an executed training in a result. Any plugin can fill it, and each report shows it without its help.

The plugin observed a training that dpspec did not run itself, or made the training's log into the same facts. All
sentences are the plugin's own: reports state them, and decide nothing by their words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dpspec.contract.findings import Channel
from dpspec.contract.frozen import FrozenMap


@dataclass(frozen=True, kw_only=True)
class ExecutedPhase:
    """Consecutive steps that share their parameters.

    Attributes:
        first: The number of the first step, from 1.
        steps: The number of steps.
        noise_multiplier: The standard deviation of the noise on a sum, in clip norms; 0 for updates without noise, None
            if it was not observed.
        counted_share: The share of the noise multiplier that upper bounds count. It is below 1 if rounding may lengthen
            a contribution beyond the clip norm, or if the measured noise supports less.
        clip_norm: The clip norm; None if it is not known.
        rate: The rate of Poisson sampling; None for other batches, or if it is not known.
    """

    first: int
    steps: int
    noise_multiplier: float | None
    clip_norm: float | None
    rate: float | None
    counted_share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FiredRule:
    """A rule that fired on an executed training.

    Attributes:
        text: The observation, with numbers.
        why: Why this matters for privacy.
        fix: The change that removes the cause.
        accepted: The reason of the user who accepts it; empty for a caution that fails the check.
    """

    name: str
    text: str
    why: str
    fix: str
    accepted: str = ""


@dataclass(frozen=True, kw_only=True)
class ExecutedNoise:
    """The generator of an executed training's noise.

    Attributes:
        generator: Its name, such as ``torch's CPU generator``.
        seed_bits: The number of bits of its seed, of 64; None if it is unknown.
        draws: The number of draws whose sum is one value: 4 with ``secure_mode`` of Opacus.
        integers: Whether contributions and noise are integers, drawn and added exactly.
        revealed: A lower bound on delta at every finite epsilon for an adversary who chooses gradients and sees noisy
            sums, because the generator's numbers end (``proofs/floating-point.md``, Theorem F1); 0 if none is known.
    """

    generator: str
    seed_bits: int | None = None
    draws: int = 1
    integers: bool = False
    revealed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ExecutedOrigin:
    """The origin of an executed training; empty texts are unknown.

    Attributes:
        began: The time of the beginning.
        versions: Of Python and of the loaded libraries.
        machine: The platform and the devices.
        dtypes: Of the trained parameters, and so of sums and noise.
        dataset: The classes of the dataset and of those inside it; empty without a loader.
        records: The number of records.
        indices: SHA-256 of a salt in the folder and the indices of a subset; empty for other datasets.
        federated: Whether the records are clients of a server.
        noise: The generator of the noise; None if it is unknown.
    """

    began: str
    versions: FrozenMap
    machine: str
    dtypes: tuple[str, ...] = ()
    dataset: str = ""
    records: int | None = None
    indices: str = ""
    federated: bool = False
    noise: ExecutedNoise | None = None


@dataclass(frozen=True, kw_only=True)
class SectionGroup:
    """A titled part of the section in full reports: a table, sentences, or both.

    Attributes:
        title: The heading.
        columns: The heads of the table's columns: name, status and text.
        rows: The rows of the table.
        sentences: The sentences below it, each without or with a full stop.
        if_deviating: The sentences if the run deviates, so that its bounds are void; None for the same sentences.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[Channel, ...] = ()
    sentences: tuple[str, ...] = ()
    if_deviating: tuple[str, ...] | None = None

    def of_deviating_run(self) -> SectionGroup:
        """The part without the sentences that a deviation makes void."""
        return self if self.if_deviating is None else replace(self, sentences=self.if_deviating, if_deviating=None)


@dataclass(frozen=True, kw_only=True)
class ExecutedSection:
    """An executed training that a plugin observed.

    Attributes:
        ran: The training in one sentence.
        groups: The parts of full reports.
        brief: The part of the brief report.
        closing: The last sentence of the brief report: what all of it assumes.
        open: Why nothing is proved although the run does not deviate: the open requirements, with their names, and
            sentences without a name.
        incomplete: Why the observation has no end; empty if it has one.
        cautions: Limits of the result, in the order of importance. The cautions of rules are in ``rules``.
        faults: The faults of the run by importance, as sentences.
        phases: The executed schedule, or its first phases if there are many.
        more_phases: The number of phases that are not listed.
        phases_alone: Whether the bounds count only Poisson samples with the noise and rates of the phases; not if they
            charge for omitted or filled batches, or for adaptive clip norms.
        advice: What may be wrong, for the checks that are rejected.
        retraining: How a training with a smaller epsilon differs, as an imperative; empty without such advice.
        assumes: Names of everything that a proof assumes.
        assumed: Names that the user assumes (``--assume``).
        public: Names of hyperparameters that the user declares public (``--public``).
        rules: The rules that fired.
        confirm: The assumptions of the proof, in sentences that a person can confirm; void if the run deviates.
        answers: Sentences for the lines of a privacy statement and of the provenance, by the name of the line:
            ``accounting``, ``verification`` and ``not-recorded``.
        answers_if_deviating: Those that differ if the run deviates.
        facts: Numbers and names for programs.
        digest: SHA-256 of the observed files.
        origin: None if it is unknown.
    """

    ran: str = ""
    groups: tuple[SectionGroup, ...] = ()
    brief: SectionGroup | None = None
    closing: str = ""
    open: tuple[Channel, ...] = ()
    incomplete: str = ""
    cautions: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    phases: tuple[ExecutedPhase, ...] = ()
    more_phases: int = 0
    phases_alone: bool = False
    advice: tuple[str, ...] = ()
    retraining: str = ""
    assumes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    rules: tuple[FiredRule, ...] = ()
    confirm: tuple[str, ...] = ()
    answers: FrozenMap = field(default_factory=FrozenMap)
    answers_if_deviating: FrozenMap = field(default_factory=FrozenMap)
    facts: FrozenMap = field(default_factory=FrozenMap)
    digest: str = ""
    origin: ExecutedOrigin | None = None

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The rows of all groups."""
        return tuple(row for group in self.groups for row in group.rows)

    @property
    def is_federated(self) -> bool:
        """Whether the records are clients of a server."""
        return self.origin is not None and self.origin.federated

    def of_deviating_run(self) -> ExecutedSection:
        """The section without the sentences that a deviation makes void: those with or for bounds."""
        return replace(
            self,
            groups=tuple(group.of_deviating_run() for group in self.groups),
            brief=None if self.brief is None else self.brief.of_deviating_run(),
            open=(),
            confirm=(),
            answers=FrozenMap({**self.answers, **self.answers_if_deviating}),
            answers_if_deviating=FrozenMap(),
        )
