"""The sensitivity of a traced step, measured by replays with another record.

Let S be the clipped sum of a batch, and S' the sum after one record is replaced by another one. If each contribution
depends on its own record and has at most the clip norm C, then |S - S'| <= 2 C: the two contributions, and nothing
else, change. The outputs of the model at the other records, and the gradients of the loss at these outputs, are equal,
because the same operations run on the same rows (``docs/explanation/replay.md``).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from dpspec_recording.step_replay.extreme_records import boundless_records, extreme_records, padding_of
from dpspec_recording.step_replay.held_records import DrawnRecords, HeldRecords
from dpspec_recording.step_replay.limits import LARGEST_MOVE, MOVE_ROUNDING, ROWS_ROUNDING
from dpspec_recording.step_replay.trace import AbstainError, OtherCountError, StepTrace

#: Number of replacements of one step, without the one of tokens.
MOST_REPLACEMENTS = 4

#: Random vectors for the comparison of rows in any order, and the largest number of rows.
_DIRECTIONS, _MOST_ROWS = 8, 2048

#: The factor of a scaled record: large, and of the other sign.
_SCALE = -30.0


@dataclass(frozen=True, kw_only=True)
class StepReplay:
    """The result of the replays of one step.

    Attributes:
        replacements: The number of replays with another record.
        sum_moved: The largest move of the clipped sum, in clip norms.
        outputs_moved: The largest relative change of the model's outputs at other records.
        gradients_moved: The same for the gradients at these outputs and of per-sample gradients; 0 if none was
            observed.
        abstained: The reason why the step could not be replayed; empty if it was.
    """

    replacements: int = 0
    sum_moved: float = 0.0
    outputs_moved: float = 0.0
    gradients_moved: float = 0.0
    abstained: str = ""

    @property
    def mixes_records(self) -> bool:
        """Whether the outputs or gradients at other records depend on the replaced one."""
        return max(self.outputs_moved, self.gradients_moved) > ROWS_ROUNDING

    @property
    def is_large(self) -> bool:
        """Whether the sum moves further than two contributions of one clip norm each."""
        return self.sum_moved > LARGEST_MOVE * (1.0 + MOVE_ROUNDING)


def measure(
    trace: StepTrace,
    batch: Sequence[Tensor],
    sums: Sequence[Tensor],
    clip_norm: float,
    *,
    outputs: Sequence[Tensor] = (),
    gradients: Sequence[Tensor] = (),
    per_sample: Sequence[Tensor] = (),
    randomness: random.Random | None = None,
    may_sort: bool = False,
    skips_counts: bool = False,
    drawn: DrawnRecords | None = None,
    trained: Sequence[Tensor] = (),
) -> StepReplay:
    """Replay a step with other records, after its sum and before its update.

    Args:
        trace: The stopped trace.
        batch: Features, labels, ... of the batch, each (b, ...), as the step used them.
        sums: The clipped sum, one tensor for each parameter.
        clip_norm: The maximum norm of a contribution.
        outputs: The outputs of the model, each (b, ...).
        gradients: The gradients of the loss at these outputs.
        per_sample: Per-sample gradients of parameters, each (b, ...): a record may change one row of all.
        randomness: Chooses the records; None for the system's randomness.
        may_sort: Whether the step may sort its records, for example by length: rows are then compared in any order.
        skips_counts: Whether to skip records with which ``torch.unique`` returns another number of values, as in ghost
            norms of embeddings.
        drawn: The records of the batch in their dataset; None if they are not known.
        trained: The trained parameters, which hold no records.

    Returns:
        The result; ``abstained`` says why if the step could not be replayed.
    """
    randomness = randomness or random.SystemRandom()
    try:
        if not batch or len(batch[0]) < 2:
            raise AbstainError("its batch has fewer than two records")
        replays = _Replays(trace, batch, sums, (outputs, gradients, per_sample), clip_norm, may_sort=may_sort)
        locations = HeldRecords(trace, batch, replays.values, drawn, omitted={*map(id, trained)})
        for row, replaced in _replacements(locations.values, len(batch), randomness):
            replays.replace(row, replaced, locations, skips_counts=skips_counts)
        for row, base, extreme in extreme_records(replays.values, randomness, keeps_counts=skips_counts):
            replays.compare(row, base, extreme)
        for row, _, extreme in boundless_records(replays.values, randomness):
            replays.replace_boundless(row, extreme)
        result = replays.result()
    except AbstainError as error:
        return StepReplay(abstained=str(error))
    except Exception as error:
        return StepReplay(abstained=f"{type(error).__name__}: {error}"[:200])
    is_shown = result.is_large or result.mixes_records
    if trace.reads and not is_shown and not trace.follows_reads:  # the number may carry the record
        return StepReplay(abstained=trace.reads)
    return result


class _Replays:
    """The replays of one step, and the largest moves.

    Attributes:
        values: The values of the batch before the step.
    """

    def __init__(
        self,
        trace: StepTrace,
        batch: Sequence[Tensor],
        sums: Sequence[Tensor],
        rows: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
        clip_norm: float,
        *,
        may_sort: bool,
    ) -> None:
        """rows: the outputs, gradients and per-sample gradients."""
        self._trace, self._batch, self._clip_norm, self._may_sort = trace, batch, clip_norm, may_sort
        self._targets = [*sums, *(tensor for kind in rows for tensor in kind)]
        ends = list(accumulate(map(len, (sums, *rows))))
        self._kinds = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        self._largest = [0.0, 0.0, 0.0]
        self._count, self._skipped, self._depends_on_counts = 0, "", ""
        self.values = [trace.value_before(tensor) for tensor in batch]
        self._same = self._replay([value.clone() for value in self.values])
        trace.confirm(sums, self._same[: len(sums)])

    def replace(self, row: int, replaced: list[Tensor], locations: HeldRecords, *, skips_counts: bool) -> None:
        """Replay with another record. replaced: the values of ``locations``."""
        of_features = [
            new if new.is_floating_point() else _renamed(old, row, row)
            for new, old in zip(replaced, locations.values, strict=True)
        ]
        if locations and self._replace_held(row, (replaced, of_features), locations):
            return
        try:
            self._add(row, self._replay(replaced), self._same)
        except OtherCountError as error:
            if not skips_counts:
                raise
            self._skipped = str(error)
        except AbstainError as error:
            # Whole numbers, such as the length of a sequence, may decide shapes: keep them, and the number of tokens.
            self._depends_on_counts = str(error)
            self._add(row, self._replay(of_features), self._same)

    def _replace_held(self, row: int, variants: Sequence[list[Tensor]], locations: HeldRecords) -> bool:
        """Replay with another record at all places that hold it; False if only a part of it was replaced.

        A step may also log the loss over all records, which no replay distinguishes from a use. Then the replay with
        the batch alone counts, unless this one shows a fault.
        """
        reads, branches = self._trace.reads, self._trace.branches
        for number, replaced in enumerate(variants):
            try:
                moved = self._replay(replaced, locations.memory([row], replaced))
            except AbstainError:
                continue
            self._add(row, moved, self._same)
            complete = number == 0 and self._trace.reads == reads
            self._trace.reads, self._trace.branches = reads, branches
            return complete
        self._trace.reads, self._trace.branches = reads, branches
        return False

    def compare(self, row: int, base: Sequence[Tensor], extreme: Sequence[Tensor]) -> None:
        """Replay with two other batches, which differ in a record."""
        try:
            # a step may write into its batch, and both batches share the tensors that do not differ
            before, after = (self._replay([value.clone() for value in values]) for values in (base, extreme))
        except OtherCountError:
            return
        except AbstainError as error:
            self._depends_on_counts = str(error)
        except (IndexError, RuntimeError):  # no values of these records, such as the tokens of another column
            return
        else:
            self._add(row, after, before, is_anywhere=True)

    def replace_boundless(self, row: int, values: Sequence[Tensor]) -> None:
        """Replay with a record beyond all others.

        A sum that is not finite shows nothing: finite gradients are an assumption, and a script that skips a batch for
        such a record tests a condition.
        """
        reads, branches = self._trace.reads, self._trace.branches
        with contextlib.suppress(AbstainError, ArithmeticError, IndexError, RuntimeError):
            moved = self._replay(values)
            if all(bool(total.isfinite().all()) for total in moved[self._kinds[0]]):
                self._add(row, moved, self._same)
        self._trace.reads, self._trace.branches = reads, branches

    def result(self) -> StepReplay:
        of_sum, of_outputs, of_gradients = self._largest
        if not of_sum:
            raise AbstainError(self._depends_on_counts or self._skipped or "no replaced record moves the sum")
        result = StepReplay(
            replacements=self._count, sum_moved=of_sum, outputs_moved=of_outputs, gradients_moved=of_gradients
        )
        if self._depends_on_counts and not (result.is_large or result.mixes_records):  # others were not tested
            raise AbstainError(self._depends_on_counts)
        return result

    def _replay(self, values: Sequence[Tensor], memory: Mapping[int, Tensor] | None = None) -> list[Tensor]:
        changed = list(zip(self._batch, values, strict=False))
        return self._trace.replay(changed, self._targets, memory)

    def _add(self, row: int, moved: Sequence[Tensor], same: Sequence[Tensor], *, is_anywhere: bool = False) -> None:
        """Compare two replays that differ in the record of a row.

        is_anywhere: whether the record may have another row in a step that sorts, although no output moves. Another
        label alone does not show at which row a sorted record is.
        """
        self._count += 1
        sums, *of_rows, per_sample = self._kinds
        squares = sum(
            float((new.double() - old.double()).square().sum())
            for new, old in zip(moved[sums], same[sums], strict=True)
        )
        self._largest[0] = max(self._largest[0], squares**0.5 / self._clip_norm)
        is_sorted = False  # in another order; mining changes the gradients of other records at equal outputs
        for kind, rows in enumerate(of_rows, start=1):
            for new, old in zip(moved[rows], same[rows], strict=True):
                change = _change_of_others(new, old, row, len(self._batch[0]))
                if change > ROWS_ROUNDING and self._may_sort and (kind == 1 or is_sorted):
                    is_sorted = True
                    change = min(change, _change_in_any_order(new, old))
                elif change > ROWS_ROUNDING and self._may_sort and is_anywhere:
                    change = min(change, _change_without_largest(new, old))
                self._largest[kind] = max(self._largest[kind], change)
        self._largest[2] = max(self._largest[2], _change_of_more_rows(moved[per_sample], same[per_sample]))


def _replacements(batch: Sequence[Tensor], of_batch: int, randomness: random.Random) -> list[tuple[int, list[Tensor]]]:
    """Choose rows, and batches in which each is replaced. The first ``of_batch`` tensors decide how.

    The other record is one of the batch, with another label if there is one: unchanged, scaled, null, and cut to half
    of its length. Records without tokens are not cut, but scaled again, with the label that the first scaled one did
    not have: one of the two labels is wrong and gives a large gradient. Records with tokens are also replaced by
    themselves with other tokens, as many different ones and as much padding: ghost norms of embeddings have their
    number as a shape.
    """
    size, of_step = len(batch[0]), batch[:of_batch]
    labels = [tensor for tensor in of_step if not tensor.is_floating_point() and tensor.numel() == size]
    has_tokens = any(not tensor.is_floating_point() and tensor.dim() == 2 for tensor in of_step)
    chosen: list[tuple[int, list[Tensor]]] = []
    scaled_donor = 0
    for attempt in range(MOST_REPLACEMENTS):
        row = randomness.randrange(size)
        donor = label_donor = _donor(labels, size, row, row, randomness)
        if attempt == 1:
            scaled_donor = donor
        elif attempt == 3 and not has_tokens:
            donor, label_donor = scaled_donor, _donor(labels, size, row, scaled_donor, randomness)
        replaced = []
        for tensor in batch:
            value = tensor.detach().clone()
            value[row] = tensor.detach()[donor if tensor.is_floating_point() else label_donor]
            if tensor.is_floating_point() and (attempt == 1 or (attempt == 3 and not has_tokens)):
                value[row] *= _SCALE
            elif tensor.is_floating_point() and attempt == 2:
                value[row] = 0
            elif not tensor.is_floating_point() and tensor.dim() == 2 and attempt == 3:
                value[row, tensor.shape[1] // 2 :] = padding_of(tensor)
            replaced.append(value)
        chosen.append((row, replaced))
    if has_tokens:
        row = randomness.randrange(size)
        donor = _donor(labels, size, row, row, randomness)
        chosen.append((row, [_renamed(tensor.detach(), row, donor) for tensor in batch]))
    return chosen


def _renamed(tensor: Tensor, row: int, donor: int) -> Tensor:
    """Give a row of tokens (b, length) the next larger tokens of its batch, except for padding, others the donor's."""
    renamed = tensor.clone()
    if tensor.is_floating_point() or tensor.dim() != 2:
        renamed[row] = tensor[donor]
        return renamed
    tokens = tensor[tensor != padding_of(tensor)].unique()  # type: ignore[no-untyped-call]
    is_token = torch.isin(tensor[row], tokens)
    following = torch.searchsorted(tokens, tensor[row][is_token]) + 1
    renamed[row, is_token] = tokens[following % max(1, len(tokens))]
    return renamed


def _donor(labels: Sequence[Tensor], size: int, row: int, unlike: int, randomness: random.Random) -> int:
    """Choose a row other than ``row``, with another label than the row ``unlike`` if there is one."""
    other_rows = [donor for donor in range(size) if donor != row]
    for combine in (all, any):  # one of the labels may be a number of the record, which always differs
        differing = [donor for donor in other_rows if combine(bool((t[donor] != t[unlike]).any()) for t in labels)]
        if labels and differing:
            return randomness.choice(differing)
    return randomness.choice(other_rows)


def _change_of_others(new: Tensor, old: Tensor, row: int, size: int) -> float:
    """Return the relative change of all rows except ``row``; 0 for a tensor without a row for each record."""
    if not old.dim() or len(old) != size or not old.is_floating_point():
        return 0.0
    other_rows = [other_row for other_row in range(size) if other_row != row]
    difference = (new[other_rows].double() - old[other_rows].double()).norm()
    return float(difference / old[other_rows].double().norm().clamp_min(1e-30)) if bool(difference > 0.0) else 0.0


def _change_without_largest(new: Tensor, old: Tensor) -> float:
    """Return the relative change of all rows but the one that changes most, at their places."""
    squares = (new.double() - old.double()).flatten(1).square().sum(1)
    return float(squares.sort().values[:-1].sum().sqrt() / old.double().norm().clamp_min(1e-30))


def _change_of_more_rows(new: Sequence[Tensor], old: Sequence[Tensor]) -> float:
    """Return the relative change of per-sample gradients (b, ...) of several parameters, without the largest row.

    Rows are compared at their places, else in any order: a step may sort its records. A layer that has its records in
    another order than other layers adds parts of two records in one row, and a record then changes two rows.
    """
    if not old:
        return 0.0
    new_rows, old_rows = (torch.cat([tensor.double().flatten(1) for tensor in rows], dim=1) for rows in (new, old))
    change = _change_without_largest(new_rows, old_rows)
    return min(change, _change_in_any_order(new_rows, old_rows)) if change > ROWS_ROUNDING else change


def _change_in_any_order(new: Tensor, old: Tensor) -> float:
    """Return the relative distance of rows of ``old`` (b, ...) to the nearest ones of ``new``, without the farthest.

    Rows are compared by their products with _DIRECTIONS random vectors.

    Raises:
        AbstainError: There are too many rows.
    """
    if len(old) > _MOST_ROWS:
        raise AbstainError("its batch has too many records to compare them in any order")
    before, after = old.detach().reshape(len(old), -1).double(), new.detach().reshape(len(new), -1).double()
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(before.shape[1], _DIRECTIONS, generator=generator, dtype=torch.double).to(before.device)
    products = before @ directions
    distances = torch.cdist(products, after @ directions, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    without_farthest = distances.sort().values[:-1]
    return float(without_farthest.norm() / products.norm().clamp_min(1e-30))
