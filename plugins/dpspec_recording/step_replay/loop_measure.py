"""The sensitivity of a custom loop's step, measured by replays with other records.

Let S be the sum with one contribution of each record, at most C long. If one record has other values, S moves by at
most 2 C. The replay compares all pairs of some values of two records. If the values of some records A and of all others
B change, S(A', B') - S(A', B) - S(A, B') + S(A, B) = 0. A sum that does not consist of a contribution of each record,
such as a sum of clipped means, breaks this. If all n records are equal, S is n times one contribution, and at most n C
long, at any parameters: the executed ones, and ten times larger ones. At the executed ones, no record of a small model
may reach the threshold of a layer, and a sum of thresholds above C would stay unnoticed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from dpspec_recording.step_replay.dependencies import Region, TracedStep, replay_with
from dpspec_recording.step_replay.extreme_records import boundless_records, is_features
from dpspec_recording.step_replay.limits import LARGEST_MOVE, MOVE_ROUNDING
from dpspec_recording.step_replay.projected_sums import ProjectedSum, flat
from dpspec_recording.step_replay.trace import AbstainError, BeyondError, StepTrace, address_of, tensors_in

#: Factors of a record's features in a replay, and the number of records whose values are replaced.
_SCALES, _RECORDS = (1.0, -30.0, 30.0, 0.0), 2

#: Factors of the parameters under a batch of equal records. Thirty would overflow in 26 linear layers, ten in 38; with
#: a thousand, the outputs of one layer saturate its loss, and an overflow shows nothing.
_PARAMETER_SCALES = (1.0, 10.0, 1000.0)

#: The largest number of pairs of records that are replaced if the loop takes another branch with half of the records.
_PAIRS = 8

#: Roundings of a sum per record, and at least.
_ROUNDINGS, _FEWEST = 64.0, 16


class LoopReplays:
    """The replays of a step.

    Attributes:
        replacements: The number of replays with another record.
    """

    def __init__(
        self,
        step: TracedStep,
        sums: Sequence[Tensor],
        clip_norm: float,
        projection: ProjectedSum | None,
        note: Callable[..., None],
    ) -> None:
        """Prepare the replays.

        Args:
            step: The step.
            sums: Its reported sum, which a replay gives again.
            clip_norm: The declared maximum norm of a contribution.
            projection: The sum before it is clipped again as a whole, if it is.
            note: Gets the moves, in clip norms, by the names of the facts.
        """
        self.replacements = 0
        self._step, self._sums, self._clip_norm, self._projection, self._note = step, sums, clip_norm, projection, note
        self._random, self._held = random.SystemRandom(), step.held_records()
        # a loop that picks its records one by one reads no tensor of the batch, which has copies
        arguments = (tensors_in((operation.args, dict(operation.kwargs))) for operation in step.trace.operations)
        self._reads_batch = not {*map(id, step.batch)}.isdisjoint(map(id, itertools.chain.from_iterable(arguments)))
        self._executed = flat(sums).detach() if projection is None else self._repeated([], {})
        records = len(step.batch[0])
        unit = max(torch.finfo(total.dtype).eps for total in sums)
        self._most = LARGEST_MOVE * (1.0 + MOVE_ROUNDING) * clip_norm
        self._rounding = _ROUNDINGS * unit * ((records + _FEWEST) * clip_norm + float(self._executed.norm()))

    def _repeated(self, changed: Sequence[tuple[Tensor, Tensor]], memory: Mapping[int, Tensor]) -> Tensor:
        trace, projection = self._step.trace, self._projection
        total = flat(trace.replay(changed, self._sums, memory))
        if projection is None:
            return total
        before = flat(projection.trace.replay(changed, projection.sources, memory))
        projection.require(before, total)
        return before

    def _replayed(
        self, values: Sequence[Tensor], rows: Iterable[int], parameters: Mapping[int, Tensor] | None = None
    ) -> Tensor:
        """The sum with other values of the records at some rows."""
        changed, memory = list(zip(self._step.batch, values, strict=True)), self._held.memory(rows, values)
        try:
            return self._repeated(changed, {**memory, **(parameters or {})})
        except AbstainError:  # such as a logged loss over all records
            if not memory or not self._reads_batch:
                raise
            return self._repeated(changed, parameters or {})

    def _require_known(self, is_small: bool, beyond: str) -> None:
        """Abstain if a large change follows numbers of a record beyond all others: the loop may clip by these.

        Raises:
            BeyondError: It is so.
        """
        if beyond and not is_small:
            raise BeyondError(
                f"{beyond} reads a number of each record, and no record shows the operations of the loop after one "
                "beyond these: clip by operations of torch, such as clamp"
            )

    def compare_earlier(self, earlier: Sequence[Tensor]) -> None:
        """Let the sum of the step before grow by 1."""
        grown = flat(replay_with(self._step.trace, self._sums, [Region(total) for total in earlier], 1.0, 1.0))
        self._note(earlier_sum=float((grown - flat(self._sums)).norm()) / self._clip_norm)

    def replace_records(self) -> None:
        """Give a record other values."""
        moved, reason = 0.0, "no replaced record moves the sum"
        for row in self._random.sample(range(len(self._step.batch[0])), _RECORDS):
            results, beyond = [self._executed], ""
            for values in self._values(row):
                try:
                    total = self._replayed(values, [row])
                except AbstainError as error:  # the loop takes another branch with this record
                    reason = str(error)
                    continue
                # a record of one token may have no loss, as the mean over no token
                results += [total] if bool(total.isfinite().all()) else []
                beyond = beyond or self._step.trace.beyond
            distances = (float((a - b).norm()) for index, a in enumerate(results) for b in results[:index])
            largest = max(*distances, 0.0)
            self._require_known(largest <= self._most, beyond)
            moved = max(moved, largest)
            self.replacements += len(results) - 1
        if not moved:
            raise AbstainError(reason)
        self._note(moved=moved / self._clip_norm)

    def replace_with_boundless(self) -> None:
        """Give a record numbers beyond all others. A sum that is not finite shows nothing."""
        trace, distances, beyond = self._step.trace, [0.0], ""
        reads, branches = trace.reads, trace.branches
        for row, _, values in boundless_records(self._step.batch, self._random):
            with contextlib.suppress(AbstainError, ArithmeticError, IndexError, RuntimeError):
                total = self._replayed(values, [row])
                if bool(total.isfinite().all()):
                    distances.append(float((total - self._executed).norm()))
                    beyond = beyond or (trace.beyond if distances[-1] > self._most else "")
        self._require_known(not beyond, beyond)
        trace.reads, trace.branches = reads, branches
        self._note(moved=max(distances) / self._clip_norm)

    def replace_halves(self) -> None:
        """Give some records, then the rest, then the whole batch other values; or two records, one by one and both."""
        half = torch.tensor([self._random.random() < 0.5 for _ in range(len(self._step.batch[0]))])
        half[:2] = torch.tensor([True, False])
        count, reason = 0, ""
        # records of one branch of the loop are often two, and rarely a whole batch
        for rows, others in ((half, ~half), *(self._two_records() for _ in range(_PAIRS))):
            for scale in _SCALES[:2]:
                try:
                    ours, theirs, both = (
                        self._replayed(_rolled(self._step.batch, part, scale), part.nonzero()[:, 0].tolist())
                        for part in (rows, others, rows | others)
                    )
                except AbstainError as error:
                    reason = str(error)
                    continue
                count += 1
                change = float((self._executed - ours - theirs + both).norm())
                self._require_known(change <= self._rounding, self._step.trace.beyond)
                self._note(interaction=change / self._clip_norm if change > self._rounding else 0.0)
            if count:
                return
        raise AbstainError(reason)

    def _two_records(self) -> tuple[Tensor, Tensor]:
        """Two rows of the batch, each as (b,) truth values."""
        records = len(self._step.batch[0])
        first, second = torch.zeros(2, records, dtype=torch.bool)
        for rows, row in zip((first, second), self._random.sample(range(records), 2), strict=True):
            rows[row] = True
        return first, second

    def equal_records(self, sources: Mapping[int, Tensor], parameters: Sequence[Tensor]) -> None:
        """Give all records the same values.

        sources: by tensor of the batch, the tensor of the dataset that it is from. parameters: the trained ones.
        """
        records = len(self._step.batch[0])
        for scale in _PARAMETER_SCALES:
            memory = {} if scale == 1.0 else _scaled(self._step.trace, parameters, scale)
            for values in self._equal(sources):
                with contextlib.suppress(AbstainError):  # the loop branches on its parameters or records
                    length = float(self._replayed(values, range(records), memory).norm()) - self._rounding
                    if length > records * self._clip_norm and self._step.trace.beyond:
                        continue  # the parameters are scaled too: nothing is known about such numbers
                    self._note(longest=length / records / self._clip_norm if math.isfinite(length) else 0.0)

    def _equal(self, sources: Mapping[int, Tensor]) -> list[list[Tensor]]:
        """Batches of one record, with the values that :meth:`_values` gives it, of its scaled features with its own
        label (one of the two labels is wrong, and gives a large gradient), and with extreme numbers."""
        batch = self._step.batch
        row = self._random.randrange(len(batch[0]))
        own_label = [tensor.detach().clone() for tensor in batch]
        for value in own_label:
            if is_features(value):
                value[row] *= _SCALES[1]
        variants = [*self._values(row), own_label, *_extreme_numbers(batch, sources)]
        return [[value[row].expand_as(value).clone() for value in values] for values in variants]

    def _values(self, row: int) -> list[list[Tensor]]:
        """Batches in which the record of a row has the features of another one, scaled, with each of both labels.

        Tokens cannot be scaled: then the other record changes with each scale, and is cut to its first token.
        """
        batch = self._step.batch
        other_rows = [donor for donor in range(len(batch[0])) if donor != row]
        labels = [tensor for tensor in batch if tensor.numel() == len(tensor)]
        differing = [donor for donor in other_rows if any(bool((t[donor] != t[row]).any()) for t in labels)]
        is_scaled = any(is_features(tensor) for tensor in batch)
        donor = self._random.choice(differing or other_rows)
        variants = []
        for scale in _SCALES:
            donor = donor if is_scaled else self._random.choice(differing or other_rows)
            for label in {row, donor} if labels and scale == 0.0 else {donor}:
                values = [tensor.detach().clone() for tensor in batch]
                for value, tensor in zip(values, batch, strict=True):
                    is_label = tensor.numel() == len(tensor)
                    value[row] = tensor.detach()[label if is_label else donor]
                    if tensor.is_floating_point() and not is_label:
                        value[row] *= scale
                    elif not is_scaled and not is_label and tensor.dim() > 1 and scale == 0.0:
                        value[row, 1:] = 0
                variants.append(values)
        return variants


def _scaled(trace: StepTrace, parameters: Sequence[Tensor], scale: float) -> dict[int, Tensor]:
    """By address, the memory of the parameters with all numbers times ``scale``."""
    return {
        address_of(parameter): trace.memory_before(parameter).view(parameter.dtype).mul(scale).view(torch.uint8)
        for parameter in parameters
        if parameter.is_floating_point() and address_of(parameter)
    }


def _extreme_numbers(batch: Sequence[Tensor], sources: Mapping[int, Tensor]) -> list[list[Tensor]]:
    """The batch with the largest real number of the dataset for each record, if each record has a real number.

    A loop may multiply clipped gradients by such numbers. If few are large, most batches have none of these.
    """
    values = [tensor.detach().clone() for tensor in batch]
    changed = False
    for value, tensor in zip(values, batch, strict=True):
        source = sources.get(id(tensor))
        if source is not None and tensor.is_floating_point() and tensor.numel() == len(tensor):
            numbers = source.detach().reshape(-1)
            value[...] = numbers[numbers.abs().nan_to_num(nan=0.0, posinf=0.0).argmax()]
            changed = True
    return [values] if changed else []


def _rolled(batch: Sequence[Tensor], rows: Tensor, scale: float) -> list[Tensor]:
    """The batch with the values of the next record, and features times ``scale``, in some rows.

    rows: (b,), whether it is one. Neighbors of a record stay among equal values, so features are scaled too.
    """
    rolled = []
    for tensor in batch:
        value, selected = tensor.detach().clone(), rows.to(tensor.device)
        value[selected] = tensor.detach().roll(-1, 0)[selected]
        if is_features(tensor):
            value[selected] *= scale
        rolled.append(value)
    return rolled
