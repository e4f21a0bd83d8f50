"""What replays of steps find, without torch: replayers make these facts, and judges read them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dpspec_recording.folder.merging import OWN_IF_ANY, Count, Names, Number, Real, join_by, union, word

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


@dataclass(frozen=True, kw_only=True)
class ReplayFacts:
    """Replayed steps.

    moved: the largest move of the sum in clip norms if a record is replaced; outputs, gradients: the largest changes of
    other records; longest: the longest contribution in batches of equal records, in clip norms, 0 if there was no such
    batch. failure: why the last chosen step that was not replayed was not. carrying: the number of steps whose
    sum depends on values of the batch before; tables: on a table of all records. varying: the number of traced steps
    with another number of Python in their operations than an earlier one; reading: with one that follows from a read
    number; testing: with a condition on the batch in Python. exchanging: the number of steps whose sum depends on
    values that other processes sent; projected: the number of replayed steps whose sum is clipped again as a whole;
    reading_radius: those that read numbers from other tensors for it. computing: the number of steps whose sum depends
    on values that the script computed from the dataset or from earlier batches. replaced: the types and shapes of the
    tensors whose rows replays replace. unreplayed: the reasons for kinds of steps without a replayed one.
    """

    tried: Number = field(metadata=_SUM)
    replayed: Number = field(metadata=_SUM)
    replacements: Number = field(metadata=_SUM)
    moved: Number = field(metadata=_MAX)
    outputs: Number = field(metadata=_MAX)
    gradients: Number = field(metadata=_MAX)
    longest: Number = field(metadata=_MAX)
    failure: str = field(metadata=join_by(word))
    carrying: Count = field(metadata=_SUM)
    tables: Count = field(metadata=_SUM)
    varying: Count = field(metadata=_SUM)
    reading: Count = field(metadata=_SUM)
    testing: Count = field(metadata=_SUM)
    sizes: SizeFacts | None = field(metadata=OWN_IF_ANY)
    replaced: Names = field(metadata=join_by(union))
    unreplayed: Names = field(metadata=join_by(union))
    exchanging: Count = field(default=0, metadata=_SUM)
    projected: Count = field(default=0, metadata=_SUM)
    reading_radius: Count = field(default=0, metadata=_SUM)
    computing: Count = field(default=0, metadata=_SUM)

    @classmethod
    def of_none(cls, failure: str) -> "ReplayFacts":
        """The facts of a training none of whose steps can be replayed, for a reason."""
        names = ("tried", "replayed", "replacements", "moved", "outputs", "gradients", "longest")
        counts: dict[str, Any] = dict.fromkeys(names, 0.0)
        counts |= dict.fromkeys(("carrying", "tables", "varying", "reading", "testing"), 0)
        return cls(**counts, failure=failure, sizes=None, replaced=(), unreplayed=(failure,))


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
