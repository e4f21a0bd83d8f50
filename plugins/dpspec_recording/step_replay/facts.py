"""What replays of steps find, without torch: replayers make these facts, and judges read them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from dpspec_recording.folder.merging import OWN_IF_ANY, Count, Names, Number, Real, join_by, union, word

#: Origins of values that a sum depends on: of earlier batches, of all records, of other processes, and numbers that the
#: script read. Weights of earlier trainings are named by a rule.
BATCH_BEFORE, DATASET, TABLE, ROWS, WEIGHTS = "batch before", "dataset", "table", "rows", "weights"
PROCESSES, RADIUS = "processes", "radius"

_SUM, _MAX, _MIN = join_by(sum), join_by(max), join_by(min)


@dataclass(frozen=True, kw_only=True)
class SizeFacts:
    """Steps that were replayed at the batch size of another one. lowest, highest: powers of the batch size by which
    gradients at the outputs change; removed: the largest move of the sum for each omitted or repeated record, in clip
    norms."""

    steps: Count = field(metadata=_SUM)
    lowest: Real = field(metadata=_MIN)
    highest: Real = field(metadata=_MAX)
    removed: Number = field(metadata=_MAX)


def _sums(rows: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    return {name: sum(row.get(name, 0) for row in rows) for name in dict.fromkeys(chain.from_iterable(rows))}


@dataclass(frozen=True, kw_only=True)
class ReplayFacts:
    """Replayed steps.

    moved: the largest move of the sum in clip norms if a record is replaced; outputs, gradients: the largest relative
    changes of the model's outputs at other records, and of gradients there; interaction: of a custom loop, the largest
    change of the contributions of other records, in clip norms; earlier_sum: likewise the move of the sum if the sum of
    the step before grows by 1; longest: the longest contribution in batches of equal records, in clip norms, 0 if there
    was no such batch.
    failure: why the last chosen step that was not replayed was not. origins: by the origin of values from outside of
    the batch (:mod:`~dpspec_recording.step_replay.origins`), the number of steps whose sum depends on them. varying:
    the number of traced steps with another number of Python in their operations than an earlier one, which follows from
    none that the script read; testing: with a condition on the batch in Python; followed: that read numbers of the
    batch, and whose operations use known functions of these alone. tested_at, read_at: the lines of the script.
    projected: the number of replayed steps whose sum is clipped again as a whole.
    replaced: the types and shapes of the tensors whose rows replays replace. unreplayed: the reasons for kinds of steps
    without a replayed one.
    """

    tried: Number = field(metadata=_SUM)
    replayed: Number = field(metadata=_SUM)
    replacements: Number = field(metadata=_SUM)
    moved: Number = field(metadata=_MAX)
    outputs: Number = field(default=0.0, metadata=_MAX)
    gradients: Number = field(default=0.0, metadata=_MAX)
    interaction: Number = field(default=0.0, metadata=_MAX)
    earlier_sum: Number = field(default=0.0, metadata=_MAX)
    longest: Number = field(default=0.0, metadata=_MAX)
    failure: str = field(metadata=join_by(word))
    origins: Mapping[str, Count] = field(default_factory=dict, metadata=join_by(_sums))
    varying: Count = field(metadata=_SUM)
    testing: Count = field(metadata=_SUM)
    followed: Count = field(default=0, metadata=_SUM)
    projected: Count = field(default=0, metadata=_SUM)
    sizes: SizeFacts | None = field(metadata=OWN_IF_ANY)
    tested_at: Names = field(default=(), metadata=join_by(union))
    read_at: Names = field(default=(), metadata=join_by(union))
    replaced: Names = field(metadata=join_by(union))
    unreplayed: Names = field(metadata=join_by(union))

    @classmethod
    def of_none(cls, failure: str) -> "ReplayFacts":
        """The facts of a training none of whose steps can be replayed, for a reason."""
        measured: dict[str, Any] = dict.fromkeys(("tried", "replayed", "replacements", "moved"), 0.0)
        return cls(**measured, varying=0, testing=0, failure=failure, sizes=None, replaced=(), unreplayed=(failure,))


class ReplacedTensors:
    """The types and shapes of the tensors whose rows replays replace.

    >>> import numpy as np
    >>> tensors = ReplacedTensors()
    >>> tensors.note([np.zeros((5, 20), np.float32), np.zeros((5, 7), np.int64)])
    >>> tensors.note([np.zeros((8, 20), np.float32), np.zeros((8, 9), np.int64)])
    >>> tensors.names
    ('float32 (B, 20)', 'int64 (B, *)')
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int, int], tuple[object, ...]] = {}

    def note(self, batch: Iterable[Any]) -> None:
        """Note the tensors of a replayed step: B is the batch size, and * a size that varies between steps."""
        kinds: list[tuple[str, int]] = []
        for tensor in batch:
            kind = str(tensor.dtype).removeprefix("torch."), len(tensor.shape)
            key, sizes = (*kind, kinds.count(kind)), tuple(tensor.shape[1:])
            pairs = zip(self._sizes.setdefault(key, sizes), sizes, strict=True)
            self._sizes[key] = tuple(old if old == new else "*" for old, new in pairs)
            kinds.append(kind)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            f"{dtype} ({', '.join(map(str, ('B', *sizes)))}{'' if sizes else ','})"
            for (dtype, _, _), sizes in self._sizes.items()
        )


@dataclass(frozen=True, kw_only=True)
class MapFacts:
    """Maps of the noisy gradient before the update. explained: steps with the gradients of a known map; by_all: of each
    known map; replayed: maps that were replayed with other records; moved: those that a record moves; public: maps that
    read declared public data, and no other tensors; inputs: the shapes of further tensors that a map reads."""

    explained: Count = field(metadata=_SUM)
    by_all: Count = field(metadata=_SUM)
    replayed: Count = field(metadata=_SUM)
    moved: Count = field(metadata=_SUM)
    public: Count = field(metadata=_SUM)
    inputs: str = field(metadata=join_by(word))
