"""The facts that a recorder notes at the end and with each saved state, and their union over ranks or parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, TypeAlias

from dpspec import json_records
from dpspec.errors import RecordingError
from dpspec.json_records import Between, Count, Real
from dpspec.recording.folder.header import LONGEST, texts

Names: TypeAlias = tuple[str, ...]
Number: TypeAlias = Annotated[float, Between(0.0, 1e15)]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts over all steps; None if the recorder does not observe them. The observers' ``found`` describes the rows.

    outside: 1 if code other than the optimizer moved a parameter after the last step. loaded: the number of steps
    before which loaded weights moved the parameters; returned: before which weights of an earlier step were put back in
    another way. other_steps: of other private optimizers. audits: the numbers of
    steps and of audited steps, and the probability of an audit after the first ones. resumed: whether the optimizer had
    made steps at the beginning. history: the accountant's. adaptive: of :class:`AdaptiveCount`. noise: of
    :class:`NoiseWatch`, unread; of several parts or sharded ranks a list. rules: by rule its facts, unread; of several
    ranks or parts a list. carrying: the number of steps whose sum depends on values of the batch before.
    tables: of those that depend on a table of all records. scaled: of :class:`SteppedGradients`. maps: of
    :class:`GradientMaps`; map_inputs: the shapes of further tensors that a map of the noisy gradient reads.
    step_hooks: the names of functions of the script that a step of the optimizer calls, if it changes gradients.
    ``error`` belongs to the end alone.
    """

    outside: Number
    loaded: Count
    returned: Count
    other_steps: Count
    buffers: Names
    state: Names
    attributes: Names
    rounded: Names
    coarse: Names
    audits: tuple[Count, Count, Number]
    resumed: bool
    meddled: Count | None
    scaled: tuple[Count, Count]
    maps: tuple[Count, Count, Count, Count] | None
    map_inputs: str
    sums: tuple[Count, Count] | None
    clip_limits: tuple[Count, Number, Number] | None
    ghost: tuple[Count, Count, Count] | None = None
    unverified_norms: Names
    adaptive: tuple[Count, Number, Number, Count, Count, Number] | None = None
    replays: tuple[Number, Number, Number, Number, Number, Number] | None
    replay_failure: str
    carrying: Count
    tables: Count
    sizes: tuple[Count, Real, Real, Number] | None
    passes: tuple[Count, Count, Count, Count, Count] | None
    gradients: tuple[Count, Count, Count, Number] | None
    seeds: tuple[Count, Count] | None
    restated: Count | None
    loss_scaler: bool
    updates: tuple[Count, Count, Count, Count] | None
    optimizer: str
    step_hooks: Names
    norm_type: str
    sum_type: str
    drawn_batches: Count | None
    passed_over: Count | None
    history: tuple[tuple[float, float, Count], ...] | None
    seconds: Number
    noise: Any
    rules: Any = ()
    error: str = ""


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


Join: TypeAlias = Callable[[Sequence[Any]], Any]


def _columns(*kinds: Callable[[Sequence[Any]], Any]) -> Join:
    def joined(rows: Sequence[Any]) -> Any:
        return tuple(kind(column) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True))

    return joined


def _word(values: Sequence[str]) -> str:
    """The first that is not empty; of half precisions the coarser one."""
    return "bfloat16" if "bfloat16" in values else next(filter(None, values), "")


def _rules(rows: Sequence[Any]) -> list[Any]:
    """The facts of all ranks or parts: a list of mappings by rule."""
    return [facts for row in rows for facts in (row if isinstance(row, list) else [row])]


_RANKS: dict[str, Join] = {
    **dict.fromkeys(("meddled", "restated", "carrying", "tables"), sum),
    **dict.fromkeys(
        ("sums", "ghost", "maps", "scaled", "passes", "updates", "seeds"),
        lambda rows: tuple(map(sum, zip(*rows, strict=True))),
    ),
    **dict.fromkeys(
        ("buffers", "state", "attributes", "rounded", "coarse", "unverified_norms", "step_hooks"),
        lambda names: tuple(dict.fromkeys(chain.from_iterable(names))),
    ),
    **dict.fromkeys(
        ("outside", "loaded", "returned", "other_steps", "passed_over", "seconds", "resumed", "loss_scaler"), max
    ),
    **dict.fromkeys(("optimizer", "norm_type", "sum_type", "map_inputs", "error", "replay_failure"), _word),
    **dict.fromkeys(("gradients", "history", "drawn_batches"), itemgetter(0)),
    "adaptive": _columns(sum, sum, max, sum, sum, min),
    "clip_limits": _columns(max, min, max),
    "audits": _columns(min, min, min),
    "replays": _columns(sum, sum, sum, max, max, max),
    "sizes": _columns(sum, min, max, max),
    "rules": _rules,
}

_PARTS: dict[str, Join] = {
    **_RANKS,
    **dict.fromkeys(("loaded", "returned", "other_steps", "passed_over", "seconds"), sum),
    **dict.fromkeys(("history", "error"), itemgetter(-1)),
    "audits": _columns(sum, sum, min),
    "resumed": itemgetter(0),
    "clip_limits": _columns(sum, min, max),
    "gradients": _columns(sum, sum, sum, max),
    "noise": list,
}


def of_ranks(rank_facts: Sequence[Facts], noise: Any, used: Sequence[int], batches: int) -> Facts:
    """The facts of all ranks; None if one rank has not observed them.

    used: the number of batches that the steps of each rank used; batches: of the joined steps.
    """
    values = {name: [getattr(facts, name) for facts in rank_facts] for name in _RANKS}
    joined: dict[str, Any] = {
        name: None if None in per_rank else _RANKS[name](per_rank) for name, per_rank in values.items()
    }
    if joined["drawn_batches"] is not None:
        unused = (drawn - consumed for drawn, consumed in zip(values["drawn_batches"], used, strict=True))
        joined["drawn_batches"] = batches + max(unused)
    return Facts(**joined, noise=noise)


def of_parts(part_facts: Sequence[Facts], batches: int | None) -> Facts:
    """The facts of all parts that have observed them. batches: the number of all drawn batches."""
    joined: dict[str, Any] = {}
    for name, join in _PARTS.items():
        observed = [value for facts in part_facts if (value := getattr(facts, name)) is not None]
        joined[name] = join(observed) if observed else None
    return Facts(**{**joined, "drawn_batches": batches})
