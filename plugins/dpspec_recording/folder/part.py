"""One job of a training: the folder of one process, or ``rank-0``, ``rank-1``, ... of several, read as one table.

A joined step equals the step of one process with all records: batches are united, contributions and divisors are added,
and one rank's noise counts. If the model is sharded, each rank's rows of a parameter are a layer of the joined step,
with the noise of that rank. :class:`Comparison` counts the differences between ranks.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from dpspec.errors import RecordingError
from dpspec_recording.folder.events import UNSEEN, Header, InternalStep, PublicStep, RankStep, Scored
from dpspec_recording.folder.facts import Facts, StatedFacts, of_ranks
from dpspec_recording.folder.reader import RunFolder
from dpspec_recording.folder.script_facts import ScriptFacts
from dpspec_recording.folder.writer import PUBLIC

_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,5})", re.ASCII)

#: Relative difference of the sum over the ranks along a direction that rounding explains: of float32 gradients.
SUMMED = 3e-6

#: Facts of the headers that are common to all ranks.
_COMMON = (
    *("optimizer", "inner", "model", "clipping", "reduction", "expected_batch_size", "accountant", "told_before"),
    *("scheme", "sampler", "rate", "records", "repeats", "batch_size"),
)

#: Numbers of a step that are equal on all ranks.
_EQUAL = ("noise_multiplier", "clip_norm", "learning_rate", "rate", "told_noise", "told_rate", "deviation", "divisor")


@dataclass
class Comparison:
    """Numbers of steps at which ranks do not agree.

    lengths: the number of steps of each rank. longest: the largest number, added over parts. other: the facts and
    options that differ, by name. noise: steps at which not exactly one rank adds noise, or another one than before; of
    a sharded model, at which a rank adds none. unequal: with different gradients or parameters, of a sharded model with
    different parameters in their passes. summed: whose reduced gradients are not the sum of all ranks'. shared: records
    drawn by several ranks at a step. seeds: steps at which a rank draws by a seed that another one uses or used.
    foreign: with batches from outside of a rank's share, or in different orders of the records. compared: steps with
    observations of all ranks. parallel: of the noise of sharded ranks, the squared components along each other and
    their number. other_data: whether
    records at the same places differ. ended: whether all ranks have an end; interim: otherwise the facts that they
    noted last, None unless all noted some.
    """

    lengths: list[int] = field(default_factory=list)
    longest: int = 0
    other: dict[str, None] = field(default_factory=dict)
    noise: int = 0
    unequal: int = 0
    summed: int = 0
    shared: int = 0
    seeds: int = 0
    foreign: int = 0
    compared: int = 0
    parallel: tuple[float, int] = (0.0, 0)
    other_data: bool = False
    ended: bool = False
    interim: Facts | None = None


@dataclass(frozen=True)
class Part:
    """One job of a training: the recordings of its processes, read as one table of steps.

    comparison: of several processes, complete after reading; None for a single one.
    """

    path: Path
    ranks: tuple[RunFolder, ...]
    header: Header
    comparison: Comparison | None = None

    @classmethod
    def open(cls, path: Path, stated: StatedFacts) -> "Part":
        """Open the folder of one process, or of all ranks, which state these facts.

        Raises as :meth:`RunFolder.open`, and ``RecordingError`` unless the ranks are all ranks of one run.
        """
        ranks = path.is_dir() and any(_RANK.fullmatch(entry.name) for entry in path.iterdir())
        if ranks and (path / PUBLIC).exists():
            raise RecordingError(f"{path}: holds a run of one process, and ranks of another")
        if ranks:
            return cls._of_ranks(path, stated)
        run_folder = RunFolder.open(path, stated)
        if run_folder.header.world:
            rank, world = run_folder.header.rank, run_folder.header.world
            raise RecordingError(f"{path}: rank {rank} of {world}: check the folder that holds all ranks")
        return cls(path, (run_folder,), run_folder.header)

    @classmethod
    def _of_ranks(cls, path: Path, stated: StatedFacts) -> "Part":
        names = sorted(entry.name for entry in path.iterdir() if _RANK.fullmatch(entry.name))
        folders = [RunFolder.open(path / name, stated) for name in names]
        ranks = sorted(folders, key=lambda rank_folder: rank_folder.header.rank)
        headers = [rank_folder.header for rank_folder in ranks]
        for rank_folder in ranks:
            world, rank, run = rank_folder.header.world, rank_folder.header.rank, rank_folder.header.run
            if rank_folder.path.name != f"rank-{rank}" or not world:
                process = f"rank {rank}" if world else "a single process"
                raise RecordingError(f"{rank_folder.path}: holds the recording of {process}; rank-N is for process N")
            if (world, run, _parameters(rank_folder.header)) != (
                headers[0].world,
                headers[0].run,
                _parameters(headers[0]),
            ):
                raise RecordingError(
                    f"{rank_folder.path}: of another run than {ranks[0].path}, or with other parameters: record each "
                    "run into a new folder, with the same model on all ranks"
                )
        missing = sorted(set(range(headers[0].world)) - {header.rank for header in headers})
        if missing or len(ranks) != headers[0].world:
            named = ", ".join(map(str, missing[:5]))
            raise RecordingError(
                f"{path}: rank {named} of {headers[0].world} is missing: every process must call dpspec.record, and "
                "the folder must hold the recordings of all"
            )
        for number, (name, _) in enumerate(headers[0].layers if headers[0].shards else ()):
            spans = [(header.shards[number][0], header.layers[number][1]) for header in headers]
            ends = [0, *(start + size for start, size in spans)]
            if [start for start, _ in spans] != ends[:-1] or ends[-1] != headers[0].shards[number][1]:
                raise RecordingError(f"{path}: the ranks do not hold each coordinate of {name[:100]} once")
        first, shares = headers[0], [header.share for header in headers if header.share is not None]
        partitioned = len(shares) == len(headers) and sum(shares) == first.records
        scheme = first.scheme if len({header.scheme for header in headers}) == 1 else "unknown"
        expected = first.expected_batch_size
        layers = [
            (f"{name} on rank {rank}", size) for rank, header in enumerate(headers) for name, size in header.layers
        ]
        joined = common_header(
            headers,
            scheme="unknown" if first.is_poisson and not partitioned else scheme,
            share=min(shares) if partitioned else None,
            expected_batch_size=None if expected is None else expected * len(headers),
            told_before=max(header.told_before for header in headers),
            layers=tuple(layers) if first.shards else first.layers,
        )
        return cls(path, tuple(ranks), joined, Comparison())

    @property
    def ended(self) -> bool:
        """Whether all processes came to the end."""
        return all(rank_folder.ended for rank_folder in self.ranks)

    @property
    def fault(self) -> str:
        """Why a recorder stopped before the training did; empty if none did."""
        return next(filter(None, (rank_folder.fault for rank_folder in self.ranks)), "")

    @property
    def script(self) -> ScriptFacts | None:
        """The script of the first rank, which all ranks run; None unless all saw its end."""
        scripts = [rank_folder.script for rank_folder in self.ranks]
        return scripts[0] if all(script == scripts[0] for script in scripts) else None

    def noted(self) -> tuple[int, Facts | None]:
        """The facts that all processes noted last, and the number of steps that they cover; for a part without an end
        that was read."""
        noted = [rank_folder.noted() for rank_folder in self.ranks]
        facts = None if any(rank_facts is None for _, rank_facts in noted) else noted[0][1]
        if facts is not None and self.comparison is not None:
            facts = self.comparison.interim
        return min(step for step, _ in noted), facts

    def steps(self) -> Iterator[PublicStep | Facts | Scored]:
        """The steps of all processes together, then the facts of their ends."""
        return self.ranks[0].steps() if self.comparison is None else self._joined_steps(self.comparison)

    def internal(self) -> Iterator[InternalStep]:
        """The internal parts of these steps."""
        return self.ranks[0].internal() if self.comparison is None else self._joined_internal(self.comparison)

    def _joined_steps(self, comparison: Comparison) -> Iterator[PublicStep | Facts | Scored]:
        world = len(self.ranks)
        facts = {name: {getattr(rank_folder.header, name) for rank_folder in self.ranks} for name in (*_COMMON, "data")}
        comparison.other = {name: None for name in _COMMON if len(facts[name]) > 1}
        comparison.other_data, comparison.noise = len(facts["data"]) > 1, 0
        streams = [iter(rank_folder.steps()) for rank_folder in self.ranks]
        noisy, step_count = 0, 0
        while True:
            entries = [next(stream, None) for stream in streams]
            steps = [entry for entry in entries if isinstance(entry, PublicStep)]
            if len(steps) < world:
                break
            joined = _joined_step(steps, self.header)
            adding = [rank for rank, step in enumerate(steps) if step.noise_squares != 0.0]
            noisy = adding[0] if adding and not step_count else noisy
            comparison.noise += adding != (self._holders or [noisy])
            different = [name for name in _EQUAL if len({repr(getattr(step, name)) for step in steps}) > 1]
            options = sorted({name for step in steps for name in step.options})
            different += [name for name in options if len({repr(step.options.get(name)) for step in steps}) > 1]
            comparison.other |= dict.fromkeys(different)
            yield joined
            step_count = joined.step
        unjoined_by_rank = [[entry, *stream] for entry, stream in zip(entries, streams, strict=True)]
        comparison.lengths = [
            step_count + sum(isinstance(entry, PublicStep) for entry in unjoined) for unjoined in unjoined_by_rank
        ]
        comparison.longest = max(comparison.lengths)
        ends = [next((entry for entry in unjoined if isinstance(entry, Facts)), None) for unjoined in unjoined_by_rank]
        rank_facts = [end for end in ends if end is not None]
        comparison.ended = len(rank_facts) == world
        if comparison.ended:
            yield self._end(rank_facts, noisy)
            return
        last = [end or rank.noted()[1] for rank, end in zip(self.ranks, ends, strict=True)]
        rank_facts = [end for end in last if end is not None]
        comparison.interim = self._end(rank_facts, noisy) if len(rank_facts) == world else None

    def _end(self, rank_facts: Sequence[Facts], noisy: int) -> Facts:
        return of_ranks(rank_facts, self._holders if self.header.shards else [noisy], self.ranks[0].stated)

    @property
    def _holders(self) -> list[int]:
        """The ranks of a sharded model that hold coordinates; none of a whole model."""
        return [
            rank
            for rank, rank_folder in enumerate(self.ranks)
            if rank_folder.header.shards and rank_folder.header.parameters
        ]

    def _joined_internal(self, comparison: Comparison) -> Iterator[InternalStep]:
        world = len(self.ranks)
        comparison.unequal = comparison.summed = comparison.shared = 0
        comparison.seeds = comparison.foreign = comparison.compared = 0
        comparison.parallel, seeds = (0.0, 0), [set[bytes]() for _ in range(world)]
        holders = self._holders
        for steps, *internal_steps in zip(
            zip(*(rank_folder.steps() for rank_folder in self.ranks), strict=False),
            *(rank_folder.internal() for rank_folder in self.ranks),
            strict=False,
        ):
            public = [step for step in steps if isinstance(step, PublicStep)]
            if len(public) < world:
                break
            rows = [float(step.rows) for step in public]
            members = [step.members for step in internal_steps if step.members is not None]
            whole = np.sort(np.concatenate(members)) if len(members) == world else None
            if whole is not None:
                comparison.shared += sum(len(np.unique(indices)) for indices in members) - len(np.unique(whole))
            observed = [step.rank for step in internal_steps if step.rank is not None]
            if len(observed) == world:
                self._compare(comparison, observed, public[0], seeds)
            largest = _worst([step.largest for step in internal_steps], 1.0)
            # The sum is too long for its contributions if it is on one rank.
            excess = _worst([step.sum_norm - count for step, count in zip(internal_steps, rows, strict=True)], 0.0)
            yield InternalStep(
                step=internal_steps[0].step,
                lower=largest,
                middle=largest,
                upper=largest,
                largest=largest,
                sum_norm=math.hypot(*(step.sum_norm for step in internal_steps)) if holders else sum(rows) + excess,
                outside=_worst([step.outside for step in internal_steps], 0.0),
                members=whole,
            )

    def _compare(
        self, comparison: Comparison, observed: Sequence[RankStep], step: PublicStep, seeds: Sequence[set[bytes]]
    ) -> None:
        first = observed[0]
        comparison.compared += 1
        rows = [np.nan_to_num(rank_step.noise).astype(np.float64) for rank_step in observed if len(rank_step.noise)]
        if len(rows) > 1 and step.deviation > 0.0 and len({len(row) for row in rows}) == 1:
            # equal draws for different rows are components of the ranks' noise along each other
            squares, degrees = dependence(np.stack(rows))
            comparison.parallel = comparison.parallel[0] + squares, comparison.parallel[1] + degrees
        sharded = bool(self.header.shards)
        same = all(
            (rank_step.gradients, rank_step.parameters) == (first.gradients, first.parameters) for rank_step in observed
        )
        comparison.unequal += not same or (not sharded and first.gradients == bytes(8))
        comparison.summed += not _is_sum(observed, mean=self.header.reduction == "mean", sharded=sharded)
        for rank_seeds, rank_step in zip(seeds, observed, strict=True):
            rank_seeds.add(rank_step.seed)
        # From one seed and state of the noise's generator, each rank takes its rows of the same draw.
        drawn_from = {(rank_step.noise_seed, rank_step.noise_state) for rank_step in observed}
        comparison.seeds += any(
            not other_seeds.isdisjoint((rank_step.seed, rank_step.noise_seed))
            for rank_step, rank_seeds in zip(observed, seeds, strict=True)
            for other_seeds in seeds
            if other_seeds is not rank_seeds
        ) or (sharded and len({seed for seed, _ in drawn_from}) != len(drawn_from))
        comparison.foreign += any(rank_step.foreign or rank_step.order != first.order for rank_step in observed)


def dependence(vectors: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, int]:
    """Sum of the squared components of vectors along the earlier ones, and its degrees of freedom.

    ``vectors`` (p, q) has one vector in each row; if p > q, in each column.
    """
    tall = vectors.T if len(vectors) <= vectors.shape[1] else vectors
    upper = np.linalg.qr(tall, mode="r")
    count = len(upper)
    return float(np.square(np.triu(upper, 1)).sum()), count * (count - 1) // 2


def joined_comparison(comparisons: Sequence[Comparison]) -> Comparison:
    """The comparison over all parts; ranks of a part that was killed may have different numbers of steps."""
    counts = ("noise", "unequal", "summed", "shared", "seeds", "foreign", "compared")
    lengths = [
        comparison.lengths if comparison.ended else [min(comparison.lengths)] * len(comparison.lengths)
        for comparison in comparisons[:-1]
    ]
    parallel, degrees = zip(*(comparison.parallel for comparison in comparisons), strict=True)
    return Comparison(
        **{name: sum(getattr(comparison, name) for comparison in comparisons) for name in counts},
        lengths=[sum(column) for column in zip(*lengths, comparisons[-1].lengths, strict=False)],
        longest=sum(map(max, lengths)) + comparisons[-1].longest,
        other={name: None for comparison in comparisons for name in comparison.other},
        parallel=(sum(parallel), sum(degrees)),
        other_data=any(comparison.other_data for comparison in comparisons),
    )


def _parameters(header: Header) -> Any:
    """The names and sizes of the parameters on all ranks."""
    wholes = [whole for _, whole in header.shards] or [size for _, size in header.layers]
    return bool(header.shards), [name for name, _ in header.layers], wholes, header.width


def common_header(headers: Sequence[Header], **overrides: Any) -> Header:
    """The first header with the worst of the others' facts, and with ``overrides``."""
    return replace(
        headers[0],
        repeats=max(header.repeats for header in headers),
        no_loader=any(header.no_loader for header in headers),
        notes=tuple(dict.fromkeys(note for header in headers for note in header.notes)),
        **overrides,
    )


def _sum(counts: Sequence[int]) -> int:
    return UNSEEN if UNSEEN in counts else sum(counts)


def _joined_step(steps: Sequence[PublicStep], header: Header) -> PublicStep:
    first = steps[0]
    mean = header.world if header.reduction == "mean" else 1
    noisy = [step for step in steps if step.noise_squares != 0.0] or [first]
    measurable = [step for step in steps if math.isfinite(step.measured_divisor) and step.divisor > 0.0]
    measured = max(measurable, key=lambda s: abs(s.measured_divisor / s.divisor - 1.0), default=first)
    updates = [step.updates for step in steps]
    # The number of contributions differs from the number of drawn records if it does on one rank.
    rows = _sum([step.rows for step in steps])
    if rows != UNSEEN and _sum([step.drawn for step in steps]) != UNSEEN:
        rows = sum(step.drawn + abs(step.drawn - step.rows) for step in steps)
    rank_values = {name: [getattr(step, name) for step in steps] for name in _EQUAL}
    common: dict[str, Any] = {
        name: values[0] if len(set(values)) == 1 else math.nan for name, values in rank_values.items()
    }
    noise: dict[str, Any] = {}
    if header.shards:
        empty = np.zeros(len(header.shards), dtype=np.float32)
        noise["layers"] = np.concatenate([step.layers if len(step.layers) else empty for step in steps])
        along = np.zeros(header.width, dtype=np.float32)
        for step in steps:
            along += step.directions.astype(np.float32) if len(step.directions) else 0.0
        with np.errstate(over="ignore"):
            noise["directions"] = along.astype(np.float16)
    return replace(
        noisy[0],
        **{name: value for name, value in common.items() if name != "divisor"},
        drawn=_sum([step.drawn for step in steps]),
        batches=max(step.batches for step in steps),
        rows=rows,
        updates=next((count for count in updates if count != 1), 1),
        told_steps=first.told_steps if len({step.told_steps for step in steps}) == 1 else UNSEEN,
        divisor=mean * common["divisor"],
        measured_divisor=mean * measured.measured_divisor,
        noise_squares=float(sum(step.noise_squares for step in noisy)),
        options=first.options,
        **noise,
    )


def _is_sum(observed: Sequence[RankStep], *, mean: bool, sharded: bool) -> bool:
    """Whether the reduced gradients are the sum (the mean) of the ranks' along all directions, on all ranks."""
    width = len(observed[0].own)
    if not width or any(len(rank_step.own) != width or len(rank_step.total) != width for rank_step in observed):
        return False
    rank_sums = np.stack([rank_step.own for rank_step in observed]).astype(np.float64)
    if not np.isfinite(rank_sums).all():
        return False
    if sharded:  # the rows of all ranks, which are whole sums, are together the sum
        rows = np.stack([rank_step.total for rank_step in observed]).astype(np.float64)
        return bool(np.abs(rows.sum(0) - rank_sums.sum(0)).max() <= SUMMED * math.sqrt(float((rank_sums**2).sum())))
    over = len(observed) if mean else 1
    tolerance = SUMMED * float(np.sqrt((rank_sums**2).sum())) / over
    distances = [float(np.abs(rank_step.total - rank_sums.sum(0) / over).max()) for rank_step in observed]
    return all(distance <= tolerance for distance in distances)


def _worst(values: Sequence[float], allowed: float) -> float:
    """The largest value; NaN if one is unknown and none of the others exceeds the allowed one."""
    numbers = [value for value in values if not math.isnan(value)]
    largest = max(numbers, default=math.nan)
    return largest if len(numbers) == len(values) or largest > allowed else math.nan
