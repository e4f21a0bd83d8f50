"""Whether the model was trained before the recording began, or follows from weights that were.

The mistake: the private training continues one without noise, which no epsilon covers::

    train(model, SGD(model.parameters(), lr=0.1), loader)
    model, optimizer, loader = engine.make_private(...)

A script that is recorded as a whole shows more: a model that begins with a copy of trained weights, also of another
private training on the same records, whose epsilon adds up, and steps that read such weights, as of a teacher.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dpspec.contract.rules import MADE_TWICE, Rule, RuleRun, RuleSetup, TrainingRule
from dpspec.json_records import Count
from dpspec.text import several
from dpspec_recording.observers.sensitivity.records_in_model import rows_in
from dpspec_recording.watching.memory_rows import tensors_of

#: The number of writes to a parameter that no initialization and no loaded state explains.
_WRITES = 10

#: The fewest values of rows that are equal by no chance.
_FEWEST_VALUES = 4

#: The largest number of trainings of the script that are listed.
_MOST_LISTED = 20

RULE = Rule(
    name="trained-before",
    summary="the model was trained in this process before the block, began with a copy of weights that the script "
    "trained, or steps read such weights (a teacher); or its optimizer has state",
    why="Earlier steps on the same records cost privacy that this number does not count, without noise all of it.",
    fix="Record from the first step; or start from a fresh model, or one trained on public records only, and accept. "
    "Add up private trainings on the same records by dpspec ledger.",
    source=MADE_TWICE,
    code="dpspec_recording.observers.released_model.trained_before:TrainedBefore",
)


@dataclass(frozen=True, kw_only=True)
class EarlierWeights:
    """Weights that the script trained before, and the recorded training used.

    Attributes:
        name: The class of their optimizer, or the private training of the script.
        steps: The number of steps of the optimizer; 0 for a private training.
        begins: Whether the model began with them.
        read: Whether a replayed step read them.
        common: Whether these steps were made in loops over some of the same records; None if that is not known.
    """

    name: str
    steps: Count
    begins: bool
    read: bool
    common: bool | None

    def is_used(self) -> bool:
        """Whether the recorded training depends on them."""
        return self.begins or self.read


@dataclass(frozen=True, kw_only=True)
class EarlierTraining:
    """Traces of a training before the block.

    Attributes:
        writes: The smallest number of writes to a trained parameter.
        has_state: Whether the optimizer has state.
        is_wrapped: Whether ``make_private`` wrapped the optimizer twice.
        weights: Those that the script trained before, unless it did so on other records.
    """

    writes: Count = 0
    has_state: bool = False
    is_wrapped: bool = False
    weights: tuple[EarlierWeights, ...] = ()


class TrainedBefore(TrainingRule[EarlierTraining]):
    kind, early = EarlierTraining, True

    def __init__(self) -> None:
        self._facts = EarlierTraining()
        self._earlier: list[tuple[Any, bool, bool | None]] = []
        self._replayer: Any = None

    def start(self, setup: RuleSetup) -> None:
        if setup.resumes or not hasattr(setup.model, "parameters"):
            return
        from dpspec_recording.watching.optimizer_updates import is_fresh

        trained = [p for p in setup.model.parameters() if p.requires_grad]
        self._facts = EarlierTraining(
            writes=min((int(p._version) for p in trained), default=0),
            has_state=setup.optimizer is not None and not is_fresh(setup.optimizer),
            is_wrapped=hasattr(setup.optimizer, "original_optimizer"),
        )
        self._replayer = setup.replayer if setup.earlier else None
        tensors = [*setup.model.parameters(), *setup.model.buffers()]
        for weights in setup.earlier:
            begins = any(weights.include(tensor) for tensor in tensors)
            private = getattr(setup.loader, "dataset", None)
            self._earlier.append((weights, begins, common_records(weights.datasets, weights.loaded, private)))

    def facts(self) -> EarlierTraining:
        read = [] if self._replayer is None else self._replayer.origins.weights
        facts = self._facts
        used = (
            EarlierWeights(
                name=weights.name,
                steps=weights.steps,
                begins=begins,
                read=any(weights is read_weights for read_weights in read),
                common=common,
            )
            for weights, begins, common in self._earlier
            if common is not False
        )
        weights = tuple(filter(EarlierWeights.is_used, used))[:_MOST_LISTED]
        return EarlierTraining(
            writes=facts.writes, has_state=facts.has_state, is_wrapped=facts.is_wrapped, weights=weights
        )

    @staticmethod
    def caution(facts: EarlierTraining, run: RuleRun) -> str:
        texts = []
        if facts.writes >= _WRITES:
            texts.append(f"each trained parameter was written at least {facts.writes} times before the block")
        if facts.has_state:
            texts.append("the optimizer had state before the block")
        if facts.is_wrapped:
            texts.append("the optimizer is wrapped twice by make_private")
        texts += _phrases(facts.weights)
        text = "; ".join(texts)
        are_these = all(weights.common for weights in facts.weights) and len(texts) == len(facts.weights)
        end = "." if are_these else ": on which records?"
        return f"{text[:1].upper()}{text[1:]}{end}" if text else ""


def _phrases(earlier: Iterable[EarlierWeights]) -> Iterator[str]:
    for weights in earlier:
        used = "the model began with" if weights.begins else "a replayed step read"
        steps = f"{several(weights.steps, 'step')} of {weights.name}" if weights.steps else weights.name
        records = ", on some of the same records" if weights.common else ""
        yield f"{used} weights of {steps} in the script{records}"


def common_records(datasets: Sequence[Callable[[], Any]], whole: bool, private: Any) -> bool | None:
    """Whether steps were made in loops over some of the private records; False if each was in a loop over others.

    Args:
        datasets: References to the datasets of the loaders around the steps.
        whole: Whether each step had such a loader.
        private: The dataset of the private records; None if it is not known.
    """
    from dpspec_recording.recognized import have_common_records

    common = list[bool | None]()
    for dataset in (reference() for reference in datasets):
        if private is None or dataset is None:
            common.append(None)
        elif (are_common := have_common_records(dataset, private)) is not None:
            common.append(are_common)
        else:
            tables = (tensors_of(SimpleNamespace(dataset=records)) for records in (dataset, private))
            common.append(_have_common_rows(*tables))
    if any(common):
        return True
    return None if None in common or not common or not whole else False


def _have_common_rows(first: Sequence[Any] | None, second: Sequence[Any] | None) -> bool | None:
    """Whether tensors (n, ...) of records have equal rows; None if they are not in memory, or rows are too short."""
    if first is None or second is None:
        return None
    counts = [rows_in(rows, table) for rows in first for table in second]
    if any(counts):
        return True
    return False if _are_compared(first) and _are_compared(second) else None


def _are_compared(columns: Sequence[Any]) -> bool:
    return any(column.is_floating_point() and column[0].numel() >= _FEWEST_VALUES for column in columns)
