"""The parts of a training in several jobs, read as one recorded run.

The first part is in the run's folder, later ones in its subfolders ``part-2``, ``part-3``, ... All recorded steps
count, also those after the checkpoint that a later part continues: each part is a mechanism that gets what earlier
ones released, so their costs compose. A part must start with a state that an earlier one saved.
"""

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from dpspec.errors import RecordingError, UsageError
from dpspec_recording.folder import script_facts
from dpspec_recording.folder.events import (
    MOST_PARTS,
    UNSEEN,
    Header,
    InternalStep,
    OptionChange,
    PublicStep,
    SavedState,
    Scheme,
    Scored,
)
from dpspec_recording.folder.facts import Facts, StatedFacts, of_parts
from dpspec_recording.folder.part import Comparison, Part, common_header, joined_comparison
from dpspec_recording.folder.reader import RunFolder, has_trained
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.weights import Table
from dpspec_recording.folder.writer import INTERNAL, PUBLIC

_PART = re.compile(r"part-([1-9][0-9]{0,3})", re.ASCII)

#: For readers of headers and states alone.
_NO_FACTS: StatedFacts = ()


def part_of(folder: Path, number: int) -> Path:
    return folder if number == 1 else folder / f"part-{number}"


def next_part(folder: Path) -> int:
    """The number of the part that a recorder writes next."""
    begun = (folder / PUBLIC).exists() or any(folder.glob(f"rank-*/{PUBLIC}"))
    return max([1, *_numbers(folder)]) + 1 if begun or _numbers(folder) else 1


def earlier_part(folder: Path, rank: str, part: int) -> RunFolder | None:
    """The first of the parts before ``part`` that a process with the name ``rank`` began; "" for a single process."""
    for number in range(1, part):
        with contextlib.suppress(RecordingError, UsageError):
            return RunFolder.open(part_of(folder, number) / rank, _NO_FACTS)
    return None


def saved_parameters(folder: Path) -> list[str]:
    """The digests of the trained parameters in all states that the parts of one process noted, in their order."""
    digests = list[str]()
    for number in range(1, next_part(folder)):
        with contextlib.suppress(RecordingError, UsageError):
            states = RunFolder.open(part_of(folder, number), _NO_FACTS).states()
            digests += [state.digests["parameters"] for state in states]
    return digests


def open_run(path: Path, stated: StatedFacts) -> "Recording":
    """The recording in a folder, of one process, of all ranks, or of several parts; errors as :meth:`Part.open`."""
    numbers = [1, *_numbers(path)]
    if len(numbers) == 1:
        first = Part.open(path, stated)
        if first.header.part > 1:
            raise RecordingError(f"{path}: part {first.header.part} of a run: check the folder that holds all parts")
        return Recording((first,), first.header)
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) > MOST_PARTS:
        raise RecordingError(f"{path}: parts {', '.join(map(str, numbers[:9]))}: one is missing, or there are too many")
    numbers = [n for n in numbers if not _is_empty(part_of(path, n), last=n == numbers[-1])] or [1]
    part_folders = [Part.open(part_of(path, number), stated) for number in numbers]
    ended = list[bool]()
    for number, part in zip(numbers, part_folders, strict=True):
        if part.header.part != number and (number, part.header.part) != (1, 0):
            raise RecordingError(f"{part.path}: not the recording of this part")
        if difference := part_folders[0].header.differs(part.header):
            raise RecordingError(f"{part.path}: has another {difference} than the first part")
        ended.append(part.ended)
    states = [_states(part) for part in part_folders]
    seams = [_seam(numbers[: n + 1], states[:n], states[n]) for n in range(1, len(states))]
    if seams and part_folders[0].comparison is None and not (part_folders[0].header.part or ended[0]):
        text = "was killed and recorded without resume=True: its last steps may be missing"
        seams[0].doubts.append(("part 1", text))
    saved = tuple(
        min((rank_states[-1].step if rank_states else 0 for rank_states in ranks), default=0) for ranks in states
    )
    headers = [part.header for part in part_folders]
    worst = max(headers, key=lambda header: get_args(Scheme).index(header.scheme))
    names = ("optimizer", "inner", "model", "run")
    header = common_header(
        headers,
        **{name: " and ".join(dict.fromkeys(getattr(header, name) for header in headers)) for name in names},
        scheme=worst.scheme,
        sampler=worst.sampler,
        share=min((header.share for header in headers if header.share is not None), default=None),
    )
    options = states[0][0][0].options if states[0] and states[0][0] else {}
    return Recording(tuple(part_folders), header, tuple(numbers), tuple(seams), options, saved, is_resumed=True)


def _is_empty(part: Path, *, last: bool) -> bool:
    """Whether a part was killed before all its processes noted their start; none trained.

    Of the last part none may have noted it, because no later part shows that it starts with a state of an earlier one.
    """
    folders = [part, *part.glob("rank-*")]
    logs = [folder / (INTERNAL if (folder / INTERNAL).exists() else PUBLIC) for folder in folders]
    if any(has_trained(log, or_began=last) for log in logs):
        return False
    try:
        return not all(_states(Part.open(part, _NO_FACTS)))
    except RecordingError:
        return True


def _numbers(folder: Path) -> list[int]:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _PART.fullmatch(name)))


@dataclass
class Seam:
    """The beginning of a later part.

    source: the place of the part and the step that it continues; None if no saved state has its parameters, or if it
    starts with a server's. state: the source's, or the last one of the part before. is_received: whether it starts with
    a server's weights. doubts: what differs from it, as subject and predicate. recounted:
    whether its accountant does not continue the history. fresh: whether only its optimizer has lost its state.
    """

    source: tuple[int, int] | None
    state: SavedState
    start: SavedState
    is_received: bool
    doubts: list[tuple[str, str]]
    recounted: bool
    fresh: bool


@dataclass(frozen=True)
class Recording:
    """The parts of a training, one after the other as one table of steps.

    numbers: of all parts; empty ones are omitted. options: at the start. saved: the step of each part's last saved
    state. is_resumed: whether the folder has later parts. Known after reading if it is: starts, lengths and covered,
    the numbers of steps before each part, of the part, and of those that its facts cover; and missing, the numbers of
    the parts whose facts do not cover the checkpoint that others continue.
    """

    parts: tuple[Part, ...]
    header: Header
    numbers: tuple[int, ...] = (1,)
    seams: tuple[Seam, ...] = ()
    options: Mapping[str, OptionChange] = field(default_factory=dict)
    saved: tuple[int, ...] = ()
    is_resumed: bool = False
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    covered: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The folder of the last part."""
        return self.parts[-1].path

    @property
    def fault(self) -> str:
        """Why the recorder of the last part stopped before the training did; empty if it did not."""
        return self.parts[-1].fault

    @property
    def has_internal(self) -> bool:
        """Whether no internal log was withheld."""
        return all(rank_folder.has_internal for part in self.parts for rank_folder in part.ranks)

    @property
    def has_canaries(self) -> bool:
        """Whether the last part has scores."""
        return self.parts[-1].comparison is None and self.parts[-1].ranks[0].has_canaries

    @property
    def weights(self) -> Table | str:
        """The digests of the model at the end, which the first rank has unless each rank holds rows of it."""
        return self.parts[-1].ranks[0].weights

    @property
    def script(self) -> ScriptFacts | None:
        """The script around all parts; None unless a recorder of whole scripts saw the end of each."""
        scripts = [part.script for part in self.parts]
        whole_scripts = [script for script in scripts if script is not None]
        if not self.is_resumed or len(whole_scripts) < len(scripts):
            return None if self.is_resumed else scripts[0]
        return script_facts.of_parts(whole_scripts)

    @property
    def joints(self) -> list[tuple[int, Seam]]:
        """The number of each later part, and its beginning."""
        return list(zip(self.numbers[1:], self.seams, strict=True))

    @property
    def lags(self) -> set[int]:
        """Distances, without lost steps, between steps with equal draws if a part repeats random numbers."""
        starts = [0, *accumulate(min(step_counts) for step_counts in zip(self.lengths, self.saved, strict=True))]
        distances = {later - start for later in starts for start in starts}
        for seam, start in zip(self.seams, starts[1:], strict=False):
            if seam.source is not None:
                distances.add(start - starts[seam.source[0]] - seam.source[1])
        return {lag for lag in distances if lag > 0}

    def is_lost(self, step: int) -> bool:
        """Whether a killed part made this step, from 1 on, after its last checkpoint; known once it was read."""
        part = bisect_left(self.starts, step) - 1
        return part < len(self.parts) - 1 and step - self.starts[part] > self.saved[part]

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of ranks over all parts."""
        comparisons = [part.comparison for part in self.parts if part.comparison is not None]
        if not self.is_resumed:
            return self.parts[0].comparison
        return joined_comparison(comparisons) if comparisons else None

    def steps(self) -> Iterator[PublicStep | Facts | Scored]:
        """The steps of all parts, then the facts of the end and the scores, if the last part has these."""
        if not self.is_resumed:
            yield from self.parts[0].steps()
            return
        for column in (self.starts, self.lengths, self.covered, self.missing):
            column.clear()
        step_count, facts = 0, list[Facts]()
        for part_index, part in enumerate(self.parts):
            begun, end, after = step_count, None, list[Scored]()
            self.starts.append(begun)
            for entry in part.steps():
                if isinstance(entry, PublicStep):
                    step_count += 1
                    yield self._joined_step(entry, part_index, begun, step_count)
                elif isinstance(entry, Scored):
                    after.append(entry)
                else:
                    end = entry
            covered, fact = step_count - begun, end
            if end is None:
                covered, fact = part.noted()
            self.lengths.append(step_count - begun)
            self.covered.append(min(covered, step_count - begun))
            needed = max((s.source[1] for s in self.seams if s.source and s.source[0] == part_index), default=0)
            if any(seam.is_received for seam in self.seams[part_index:]):  # the server has its last weights
                needed = self.lengths[-1]
            if needed > covered or (needed and fact is None):
                self.missing.append(self.numbers[part_index])
            if fact is not None:
                facts.append(fact)
        if end is not None:
            yield of_parts(facts, self.parts[0].ranks[0].stated)
            yield from after

    def internal(self) -> Iterator[InternalStep]:
        """The internal parts of these steps."""
        step_count = 0
        for part in self.parts:
            for step in part.internal():
                step_count += 1
                yield replace(step, step=step_count)

    def _joined_step(self, step: PublicStep, part_index: int, begun: int, step_count: int) -> PublicStep:
        if part_index == 0:
            return step if step_count > 1 else replace(step, options={**self.options, **step.options})
        seam, told_steps = self.seams[part_index - 1], step.told_steps
        if told_steps != UNSEEN:
            told_steps = max(0, told_steps - seam.start.accounted + self.header.told_before + begun)
        options = step.options
        if step_count == begun + 1:
            # The first step of a run has all options.
            now, before = seam.start.options, seam.state.options
            changed = now
            if step_count > 1:  # those that differ from the checkpoint's, set by unknown code, or had changed before it
                changed = {name: change for name, change in before.items() if change.by != "start"}
                for name in before.keys() | now.keys():
                    values = now[name].values if name in now else ()
                    if name not in before or repr(before[name].values) != repr(values):
                        changed[name] = OptionChange("", values)
            options = {**changed, **options}
        return replace(step, step=step_count, told_steps=told_steps, options=options)


def _states(part: Part) -> list[list[SavedState]]:
    """The saved states of each rank of a part, of one rank for a single process."""
    return [rank_folder.states() for rank_folder in part.ranks]


def _seam(
    numbers: Sequence[int], earlier: Sequence[list[list[SavedState]]], rank_states: list[list[SavedState]]
) -> Seam:
    """numbers: of the parts. earlier, rank_states: by part, rank and time, the saved states."""
    nothing = SavedState(step=0, digests={})
    saved = [(n, earlier_state) for n, ranks in enumerate(earlier) for states in ranks for earlier_state in states]
    starts = [states[0] for states in rank_states if states]
    start = starts[0] if starts else nothing
    same = [
        (n, earlier_state) for n, earlier_state in saved if start.digests and _agree(start, earlier_state, "parameters")
    ]

    def likeness(candidate: tuple[int, SavedState]) -> tuple[int, int, int]:
        agreeing = (_agree(start, candidate[1], name) for name in ("frozen", "optimizer", "accountant", "noise_state"))
        return sum(agreeing), candidate[0], candidate[1].step

    part, state = max(same, key=likeness, default=(0, nothing))
    is_received = not same and bool(starts) and all(rank_start.received for rank_start in starts)
    doubts, name = list[tuple[str, str]](), f"part {numbers[-1]}"
    if len(starts) < len(rank_states) or not starts:
        doubts.append((name, "has no state of its start"))
    elif not (same or is_received):
        text = "starts with parameters that no earlier part ended with or saved by state_dict()"
        hint = "load the checkpoint before the block, or declare a server's weights by received= or --client"
        doubts.append((name, f"{text}: {hint}"))
    # Without the state that it continues, an accountant may continue a step that no recorder saw.
    least = min((before.accounted for _, before in saved if before.accounted), default=0)
    options = {name: repr(option.values) for name, option in start.options.items()}
    state = state if same else next((earlier_state for _, earlier_state in reversed(saved)), nothing)
    lost = (same or is_received) and start.fresh and not state.fresh
    if is_received:
        state = replace(state, digests={**state.digests, "parameters": start.digests["parameters"]})
    if same or is_received:
        for rank, rank_start in enumerate(starts):
            where = name if len(starts) == 1 else f"rank {rank} of {name}"
            doubts += [(where, text) for text in _doubts(rank_start, state, earlier, rank)]
            if {name: repr(option.values) for name, option in rank_start.options.items()} != options:
                doubts.append((where, "starts with other options than the first rank"))
    return Seam(
        source=(part, state.step) if same else None,
        state=state,
        start=start,
        is_received=is_received,
        doubts=list(dict.fromkeys(doubts)),
        recounted=not all(_continues_history(rank_start, state, earlier[-1]) for rank_start in starts)
        if same or is_received
        else any(rank_start.accounted < least for rank_start in starts),
        fresh=bool(lost),
    )


def _agree(start: SavedState, state: SavedState, name: str) -> bool:
    digest = start.digests.get(name, "")
    return digest != "" and digest == state.digests.get(name, "")


def _continues_history(start: SavedState, state: SavedState, last_part: Sequence[Sequence[SavedState]]) -> bool:
    """Whether the accountant has the history of the continued state, or of all steps until then.

    A script that goes back to a checkpoint, and keeps its engine, charges the steps after the checkpoint too.
    """
    ends = [states[-1] for states in last_part if states]
    return any(_agree(start, earlier_state, "accountant") for earlier_state in (state, *ends))


def _doubts(
    start: SavedState, state: SavedState, earlier: Sequence[Sequence[list[SavedState]]], rank: int
) -> Iterator[str]:
    """The differences of a rank's start from the state that it continues, and from earlier parts.

    No generator may have a seed of an earlier part, of any rank, for noise or batches, unless it continues the last
    saved state of a part: later steps of a killed part are not released.
    """
    if not _agree(start, state, "parameters"):
        yield "starts with other parameters than another rank"
    if not _agree(start, state, "frozen"):
        yield "starts with other buffers, frozen parameters or extra state than the checkpoint's"
    if not (_agree(start, state, "optimizer") or start.fresh):
        yield "starts with another state of the optimizer than the checkpoint's"
    before = [saved for ranks in earlier for states in ranks[rank : rank + 1] for saved in states]
    if any(saved.secret != start.secret for saved in before):
        yield "records its noise along other directions, so that it cannot be compared with earlier noise"
    if any(saved.digests["data"] != start.digests["data"] for saved in before):
        yield "has other records at the same places of the dataset"
    rank_histories, kinds = [states for ranks in earlier for states in ranks], ("noise", "batch")
    for kind, draws in zip(kinds, ("noise", "batches"), strict=True):
        seed, now = (start.digests[f"{kind}_{name}"] for name in ("seed", "state"))
        seeded = any(
            seed and seed == saved.digests[f"{k}_seed"] for states in rank_histories for saved in states for k in kinds
        )
        used = [
            saved.step < states[-1].step
            for states in rank_histories
            for saved in states
            if now and now in (saved.digests["noise_state"], saved.digests["batch_state"])
        ]
        if seeded and (not used or any(used)):
            how = "as earlier steps did" if used else "from the seed of an earlier part"
            yield f"draws its {draws} {how}: seed each part differently, or restore the last state of the generator"
