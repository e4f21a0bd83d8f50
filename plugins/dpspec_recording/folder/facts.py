"""The facts that a recorder notes at the end and with each saved state, and their union over ranks or parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

from dpspec import json_records
from dpspec.errors import RecordingError
from dpspec.json_records import Count
from dpspec_recording.folder.header import LONGEST, texts
from dpspec_recording.folder.probe_facts import (
    OWN,
    AdaptiveFacts,
    AuditFacts,
    ClipLimitFacts,
    GhostFacts,
    GradientFacts,
    MapFacts,
    Number,
    PassFacts,
    ReplayFacts,
    ScaledFacts,
    SeedFacts,
    SizeFacts,
    SumFacts,
    UpdateFacts,
    join_by,
)

Names: TypeAlias = tuple[str, ...]


def _word(values: Sequence[str]) -> str:
    """The first that is not empty; of half precisions the coarser one."""
    return "bfloat16" if "bfloat16" in values else next(filter(None, values), "")


def _union(names: Sequence[Names]) -> Names:
    return tuple(dict.fromkeys(chain.from_iterable(names)))


def _rules(rows: Sequence[Any]) -> list[Any]:
    """The facts of all ranks or parts: a list of mappings by rule."""
    return [facts for row in rows for facts in (row if isinstance(row, list) else [row])]


_SUM, _MAX, _FIRST = join_by(sum), join_by(max), join_by(itemgetter(0))
_WORD, _UNION, _RULES = join_by(_word), join_by(_union), join_by(_rules)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts over all steps; None if the recorder does not observe them. A field says how facts are joined.

    outside: 1 if code other than the optimizer moved a parameter after the last step. loaded: the number of steps
    before which loaded weights moved the parameters; returned: before which weights of an earlier step were put back in
    another way. other_steps: of other private optimizers. resumed: whether the optimizer had
    made steps at the beginning. history: the accountant's. noise: of
    :class:`NoiseWatch`, unread; of several parts or sharded ranks a list. rules: by rule its facts, unread; of several
    ranks or parts a list. carrying: the number of steps whose sum depends on values of the batch before.
    tables: of those that depend on a table of all records. map_inputs: the shapes of further tensors that a map
    of the noisy gradient reads. step_hooks: the names of functions of the script that a step of the optimizer calls, if
    it changes gradients. replay_failure: why steps were not replayed. ``error`` belongs to the end alone. lacking: the
    facts that the recorder always notes (:mod:`dpspec_recording.folder.required_facts`), and this folder lacks; the
    reader of the folder fills it.
    """

    outside: Number = field(metadata=_MAX)
    loaded: Count = field(metadata=join_by(max, sum))
    returned: Count = field(metadata=join_by(max, sum))
    other_steps: Count = field(metadata=join_by(max, sum))
    buffers: Names = field(metadata=_UNION)
    state: Names = field(metadata=_UNION)
    attributes: Names = field(metadata=_UNION)
    rounded: Names = field(metadata=_UNION)
    coarse: Names = field(metadata=_UNION)
    audits: AuditFacts = field(metadata=OWN)
    resumed: bool = field(metadata=join_by(max, itemgetter(0)))
    meddled: Count | None = field(metadata=_SUM)
    scaled: ScaledFacts = field(metadata=OWN)
    maps: MapFacts | None = field(metadata=OWN)
    map_inputs: str = field(metadata=_WORD)
    sums: SumFacts | None = field(metadata=OWN)
    clip_limits: ClipLimitFacts | None = field(metadata=OWN)
    ghost: GhostFacts | None = field(metadata=OWN)
    unverified_norms: Names = field(metadata=_UNION)
    adaptive: AdaptiveFacts | None = field(metadata=OWN)
    replays: ReplayFacts | None = field(metadata=OWN)
    replay_failure: str = field(metadata=_WORD)
    carrying: Count = field(metadata=_SUM)
    tables: Count = field(metadata=_SUM)
    sizes: SizeFacts | None = field(metadata=OWN)
    passes: PassFacts | None = field(metadata=OWN)
    gradients: GradientFacts | None = field(metadata=OWN)
    seeds: SeedFacts | None = field(metadata=OWN)
    restated: Count | None = field(metadata=_SUM)
    loss_scaler: bool = field(metadata=_MAX)
    updates: UpdateFacts | None = field(metadata=OWN)
    optimizer: str = field(metadata=_WORD)
    step_hooks: Names = field(metadata=_UNION)
    norm_type: str = field(metadata=_WORD)
    sum_type: str = field(metadata=_WORD)
    drawn_batches: Count | None = field(metadata=_FIRST)
    passed_over: Count | None = field(metadata=join_by(max, sum))
    history: tuple[tuple[float, float, Count], ...] | None = field(metadata=join_by(itemgetter(0), itemgetter(-1)))
    seconds: Number = field(metadata=join_by(max, sum))
    noise: Any = field(metadata=join_by(list))
    rules: Any = field(default=(), metadata=_RULES)
    error: str = field(default="", metadata=join_by(_word, itemgetter(-1)))
    lacking: Names = field(default=(), metadata=_UNION)


def read_facts(read: Any, where: str) -> Facts:
    """Read facts from JSON; ``RecordingError`` if one is missing or of another form."""
    try:
        facts = json_records.read(Facts, read, where)
        if any(len(text) > LONGEST for text in texts(tuple({**vars(facts), "noise": None, "rules": None}.values()))):
            raise ValueError(f"{where}: a text has more than {LONGEST} characters")
        for name in ("noise", "rules"):
            rows = getattr(facts, name)
            listed = rows if isinstance(rows, list | tuple) else [rows]
            if not all(row is None or isinstance(row, Mapping) for row in listed):
                raise ValueError(f"{where}: {name} must be a mapping, or a list of mappings")
    except ValueError as error:
        raise RecordingError(f"{error}: record again with this version of dpspec") from None
    return facts


def of_ranks(rank_facts: Sequence[Facts], noise: Any, used: Sequence[int], batches: int) -> Facts:
    """The facts of all ranks; None if one rank has not observed them.

    used: the number of batches that the steps of each rank used; batches: of the joined steps.
    """
    joined: dict[str, Any] = {}
    for declared in fields(Facts):
        values = [getattr(facts, declared.name) for facts in rank_facts]
        joined[declared.name] = None if None in values else declared.metadata["ranks"](values)
    if joined["drawn_batches"] is not None:
        drawn = [facts.drawn_batches or 0 for facts in rank_facts]
        unused = (rank_drawn - consumed for rank_drawn, consumed in zip(drawn, used, strict=True))
        joined["drawn_batches"] = batches + max(unused)
    return Facts(**{**joined, "noise": noise})


def of_parts(part_facts: Sequence[Facts], batches: int | None) -> Facts:
    """The facts of all parts that have observed them. batches: the number of all drawn batches."""
    joined: dict[str, Any] = {}
    for declared in fields(Facts):
        observed = [value for facts in part_facts if (value := getattr(facts, declared.name)) is not None]
        joined[declared.name] = declared.metadata["parts"](observed) if observed else None
    return Facts(**{**joined, "drawn_batches": batches})
