"""Replays of some steps of a custom loop, from the end of the step before to its reported sum.

Let S be the sum with one contribution of each record, at most C long. If one record has other values, S moves by at
most 2 C. The replay compares all pairs of some values of two records. If the values of some records A and of all others
B change, S(A', B') - S(A', B) - S(A, B') + S(A, B) = 0. A sum that does not consist of a contribution of each record,
such as a sum of clipped means, breaks this. If all n records are equal, S is n times one contribution, and at most n C
long, at any parameters: the executed ones, and ten times larger ones. At the executed ones, no record of a small model
may reach the threshold of a layer, and a sum of thresholds above C would stay unnoticed.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpspec_recording.audited_steps import AuditedSteps
from dpspec_recording.step_replay.calls import Pauses, StepCalls, is_script_mode_active
from dpspec_recording.step_replay.dependencies import Place, TracedStep, replay_with
from dpspec_recording.step_replay.facts import NUMBER, RADIUS, ReplacedTensors, ReplayFacts
from dpspec_recording.step_replay.gradient_map import GradientMap, GradientMaps
from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.origins import SumOrigins
from dpspec_recording.step_replay.other_optimizers import OtherOptimizers
from dpspec_recording.step_replay.own_updates import OwnUpdates
from dpspec_recording.step_replay.projected_sums import flat, projected_sum
from dpspec_recording.step_replay.python_numbers import PythonNumbers
from dpspec_recording.step_replay.timeline import Moment
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, address_of, tensors_in
from dpspec_recording.step_replay.watch import ALWAYS, SHARE, chosen

_ATEN = torch.ops.aten

#: Operations that pick rows of a dataset, and operations that join rows or give them another form.
_INDEXING = (_ATEN.index.Tensor, _ATEN.index_select.default, _ATEN.embedding.default)
_JOINING = (
    *(_ATEN.stack.default, _ATEN.cat.default, _ATEN.select.int, _ATEN.slice.Tensor, _ATEN.unsqueeze.default),
    *(_ATEN.view.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN._to_copy.default, _ATEN.clone.default),
    *(_ATEN.lift_fresh.default, _ATEN.unbind.int, _ATEN.squeeze.dim),
)

#: Factors of a record's features in a replay, and the number of records whose values are replaced.
_SCALES, _RECORDS = (1.0, -30.0, 30.0, 0.0), 2

#: Factors of the parameters under a batch of equal records. Thirty would overflow in 26 linear layers, ten in 38.
_PARAMETER_SCALES = (1.0, 10.0)

#: Seconds that replays of other optimizers may take, however short the training is.
_SECONDS_OF_OTHERS = 2.0

#: Roundings of a sum per record, and at least.
_ROUNDINGS, _FEWEST = 64.0, 16


#: Why no step is replayed, if none was tried.
_NO_SUM = "the loop reported no sum of two records or more: call run.summed with the sum of each step"

#: The quantities that a loop reports as tensors, and the place of the map between them and the update.
_QUANTITIES, _STAGE = ("the sum", "noise"), "before the update"


class ReplayedLoop:
    """Traces some steps of a custom loop, and replays them when it reports their sums.

    Attributes:
        abstained: The reason why the last step that was not replayed was not; empty if all were.
    """

    def __init__(
        self,
        model_tensors: Sequence[Tensor],
        optimizer: torch.optim.Optimizer | None,
        audits: AuditedSteps,
        pauses: Pauses,
    ) -> None:
        """model_tensors: the parameters and buffers of the model. optimizer: torch's, if the loop has one."""
        self._audits, self._pauses, self._calls = audits, pauses, StepCalls(pauses)
        self._known = {id(tensor) for tensor in model_tensors}
        self._parameters = [tensor for tensor in model_tensors if tensor.requires_grad]
        self._trained = {id(tensor) for tensor in self._parameters}
        self._random = random.SystemRandom()
        self._started, self._seconds = time.monotonic(), 0.0
        self._trace: StepTrace | None = None
        self._steps = self._tried = self._replayed = self._replacements = 0
        self._moved = self._mixed = self._carried = self._longest = 0.0
        self._replaced = ReplacedTensors()
        self._projected = 0
        #: What the sums of traced steps depend on.
        self.origins = SumOrigins(self._parameters, pauses)
        #: Of the noisy gradient between its noise and the update.
        self.maps = GradientMaps()
        self.numbers = PythonNumbers()
        self.own_updates = OwnUpdates(optimizer, self._parameters)
        #: The steps of other optimizers, whose gradients may read records.
        self.others = OtherOptimizers(self._parameters, model_tensors)
        self._records = 0  # of the last reported sum
        #: Of the traced step: the operations that draw its batch or noise, and the random numbers of other optimizers.
        self._private_draws: set[int] = set()
        self._other_draws: list[tuple[torch.optim.Optimizer, set[int]]] = []
        self._seconds_of_others = 0.0
        #: By tensor of the batch that was taken from it: tensors with a row for each record of the dataset.
        self._sources: dict[int, Tensor] = {}
        self._step: TracedStep | None = None  # with its batch
        self._reported: dict[str, Moment] = {}
        self._update: Moment | None = None
        self._update_end = 0  # the number of operations when the update was over
        self._shapes: tuple[list[torch.Size], list[torch.Size]] | None = None  # of the map's tensors
        self._earlier: list[weakref.ref[Tensor]] = []  # the reported sum of the step before
        self.abstained = ""

    @property
    def facts(self) -> ReplayFacts:
        """What the replays found."""
        measured = (self._moved, self._carried, self._mixed, self._longest)
        moved, carried, mixed, longest = (min(number, 1e9) for number in measured)
        return ReplayFacts(
            tried=self._tried,
            replayed=self._replayed,
            replacements=self._replacements,
            moved=moved,
            interaction=mixed,
            earlier_sum=carried,
            longest=longest,
            failure=self.abstained,
            origins={**+self.origins.steps},
            varying=self.numbers.varying,
            testing=self.numbers.testing,
            sizes=None,  # no step is replayed at another batch size
            projected=self._projected,
            replaced=self._replaced.names,
            unreplayed=self._calls.unreplayed if self._replayed else (self.abstained or _NO_SUM,),
        )

    def begin(self) -> None:
        """A step begins: trace it if it is chosen, unless a mode of the script would see its replay."""
        self._steps += 1
        training = time.monotonic() - self._started
        traced = self._calls.are_new or chosen(self._random, self._tried, self._steps, self._seconds, training)
        traced |= self.others.choose_step()
        traced &= not is_script_mode_active()
        if not traced:
            self.origins.between.stop()
        if not (traced or self._audits.audited) or is_script_mode_active():
            return
        self._calls.start()
        if traced:
            self._trace = StepTrace(self._pauses)
            self._trace.defers_indices = True
            self._trace.start()

    def end(self) -> None:
        """The step is over."""
        if self._trace is not None:
            self._trace.stop()
            if _QUANTITIES[0] in self._reported:
                self.origins.between.follow(self._trace.operations[self._reported[_QUANTITIES[0]].operations :])
            if self._update is not None and self._update_end and self._step is not None:
                self.own_updates.replay(self._step, self._update, self._update_end)
            self._trace = None
        self._step, self._reported = None, {}
        self._update, self._update_end = None, 0
        self._private_draws, self._other_draws = set(), []
        self._calls.stop()

    def note(self, quantity: str, tensors: Sequence[Tensor]) -> None:
        """Keep the tensors of a reported quantity, their values, and the number of operations before."""
        if self._trace is not None and not self._trace.failure:
            self._reported[quantity] = Moment.of(len(self._trace.operations), tensors)
            if quantity == _QUANTITIES[1]:
                self._note_private(self._trace, tensors)

    def generators_of(self, tensors: Sequence[Tensor]) -> list[torch.Generator]:
        """The generators from which tensors of this step follow; none if it is not traced."""
        return [] if self._trace is None else self._trace.generators_of(tensors)

    def update_begins(self, gradients: Sequence[Tensor]) -> None:
        """The optimizer begins its step with these gradients."""
        if self._trace is not None and not self._trace.failure:
            self._update = Moment.of(len(self._trace.operations), gradients)

    def update_ends(self) -> None:
        """The optimizer has moved the parameters."""
        if self._trace is not None and self._update is not None:
            self._update_end = len(self._trace.operations)

    def before_other_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Another optimizer steps, as of a generator: between the sum of a step and the batch of the next, or before.

        The loop has not reported the batch of the present step before its sum. Records that the gradients read are then
        other tensors of the script, and the number of records is the one of the step before.
        """
        self.others.note(optimizer)
        trace, training = self._trace, time.monotonic() - self._started
        if trace is None or not self._records or self._seconds_of_others > max(_SECONDS_OF_OTHERS, SHARE * training):
            return
        trace.stop()
        start = time.monotonic()
        gradient_map = self.others.replay(
            trace,
            optimizer,
            self._step,
            records=self._records,
            is_over=_QUANTITIES[0] not in self._reported,
        )
        if gradient_map is not None:
            self._other_draws.append((optimizer, gradient_map.draws))
            self._compare_draws()
        self._seconds_of_others += time.monotonic() - start
        if not trace.failure:
            trace.start()

    def _note_private(self, trace: StepTrace, tensors: Sequence[Tensor]) -> None:
        """Note the random numbers of the reported noise, or of the drawn records."""
        if self.others.replays and not trace.failure:
            operations = len(trace.operations)
            self._private_draws |= GradientMap(trace, (), tensors, end=operations).draws
            self._compare_draws()

    def _compare_draws(self) -> None:
        """Look for the noise, which gives the sum away, and the drawn records in the gradients of other optimizers."""
        for optimizer, draws in self._other_draws:
            if draws & self._private_draws:
                self.others.doubt(optimizer, "it reads random numbers of the private batch or noise")

    def explain_rows(self, _: str, values: Sequence[Tensor], gradients: Sequence[Tensor], __: bool) -> bool:
        """:meth:`explain` for one row of sums, one of noise, and one of gradients."""
        return self.explain(*values, *gradients)

    def explain(self, sums: Tensor, noise: Tensor, gradients: Tensor) -> bool:
        """Whether gradients other than sum and noise over a divisor come from a map of their total that reads no more.

        Args:
            sums: The reported sum, all coordinates in a row.
            noise: The reported noise, likewise.
            gradients: Of the optimizer, likewise.
        """
        if self._trace is not None and self._update is not None and len(self._reported) == len(_QUANTITIES):
            self._trace.stop()
            with contextlib.suppress(Exception):  # operations that cannot be repeated
                self._find_map(self._trace)
        if not self._shapes:
            return False
        of_sums, of_gradients = self._shapes
        values = [*_split(sums, of_sums), *_split(noise, of_sums)]
        return self.maps.explain(_STAGE, values, _split(gradients, of_gradients))

    def _find_map(self, trace: StepTrace) -> None:
        (sums, noise), update = (self._reported[quantity] for quantity in _QUANTITIES), self._update
        assert update is not None
        if [total.shape for total in sums.values] != [part.shape for part in noise.values] or trace.failure:
            return
        end = update.operations
        gradient_map = GradientMap(  # parameters have moved when the loop reports the step: they are not recomputed
            trace,
            [*sums.tensors, *noise.tensors],
            update.tensors,
            end=end,
            sources_end=min(end, max(sums.operations, noise.operations)),
        )
        values = [*sums.values, *noise.values]
        if not gradient_map.gives(values, update.values):
            return
        is_moved = gradient_map.depends_on_parts(sums.values, noise.values)
        if not is_moved and gradient_map.inputs:
            if self._step is None:
                raise AbstainError("the records of the step are not known")
            is_moved = gradient_map.moves(values, self._step)
        self.maps.add(_STAGE, gradient_map, is_moved=is_moved)
        self._shapes = [value.shape for value in sums.values], [value.shape for value in update.values]

    def summed(
        self,
        sums: Sequence[Tensor],
        drawn: Sequence[Tensor],
        records: int,
        clip_norm: float,
        *,
        dataset_records: int | None = None,
    ) -> None:
        """Replay the step up to its sum.

        Args:
            sums: The reported sum, in one tensor or several.
            drawn: The tensors of indices that the loop reported, if it has.
            records: The number of drawn records; negative if it is not known.
            clip_norm: The declared maximum norm of a contribution.
            dataset_records: The number of records of the dataset, if it is known.
        """
        self._records = max(records, 0)
        trace, earlier = self._trace, [tensor for ref in self._earlier if (tensor := ref()) is not None]
        self._earlier = [weakref.ref(total) for total in sums]
        self._calls.stop()
        if trace is None or not records:
            self._calls.end_step(replayed=False)
            self.end()
            return
        trace.stop()
        trace.defers_indices = False
        for reason, indices in trace.read_indices:
            if not trace.failure and not any(_are_equal(indices, reported) for reported in drawn):
                trace.give_up(reason)
        self._note_private(trace, drawn)
        self._tried += 1
        start, replayed = time.monotonic(), self._replayed
        try:
            if trace.failure:
                raise AbstainError(trace.failure)
            self._measure(trace, sums, drawn, records, clip_norm, earlier, dataset_records)
        except AbstainError as error:
            self.abstained = str(error)
        except Exception as error:
            self.abstained = f"{type(error).__name__}: {error}"[:200]
        self._calls.end_step(replayed=True, abstained="" if self._replayed > replayed else self.abstained)
        self._seconds += time.monotonic() - start if self._tried > ALWAYS else 0.0
        self.note(_QUANTITIES[0], sums)
        if not trace.failure and not is_script_mode_active():
            trace.limits_copies = True
            trace.start()

    def _measure(
        self,
        trace: StepTrace,
        sums: Sequence[Tensor],
        drawn: Sequence[Tensor],
        records: int,
        clip_norm: float,
        earlier: Sequence[Tensor],
        dataset_records: int | None,
    ) -> None:
        if records < 0:
            raise AbstainError("the loop reports the sum before its records and norms")
        if records < 2:
            raise AbstainError("its batch has fewer than two records")
        if not clip_norm > 0.0:
            raise AbstainError("the loop declares no clip norm")
        executed = trace.replay([], sums)
        trace.confirm(sums, executed)
        batch = self._batch(trace, records)
        if batch and (omitted_by := self._omits(trace, batch, drawn, records)):
            raise AbstainError(
                f"{omitted_by} reads a row for each drawn record that no replay replaces: pick rows by indexing or "
                "index_select"
            )
        batch = batch or self._drawn_rows(trace, drawn, records, dataset_records) or _indices(trace, drawn, records)
        if not batch:
            raise AbstainError("it has no tensor with a row for each drawn record")
        self.origins.steps[NUMBER] += self.numbers.note(trace.operations, batch)
        known = {*self._trained, *map(id, batch)}
        in_dataset = self._in_dataset(drawn, records, dataset_records)
        step = self._step = TracedStep(trace, batch, known, self._trained, in_dataset)
        locations = step.held_records()
        self.origins.constants.note(step, dataset_records)
        self.origins.note(replace(step, known={*known, *map(id, drawn)}), sums)
        of_batch = [*batch, *drawn]  # the loop may read the same records again after its sum
        self.origins.between.begin(trace, of_batch, sums)
        dataset = set(map(address_of, trace.tensors_before()))
        self.origins.between.of_batch.forget([tensor for tensor in of_batch if address_of(tensor) in dataset])

        projection = projected_sum(trace, sums, clip_norm)

        def repeated(changed: Sequence[tuple[Tensor, Tensor]], memory: Mapping[int, Tensor]) -> Tensor:
            total = flat(trace.replay(changed, sums, memory))
            if projection is None:
                return total
            before = flat(projection.trace.replay(changed, projection.sources, memory))
            projection.require(before, total)
            return before

        def replayed(values: Sequence[Tensor], rows: Iterable[int], parameters: Mapping[int, Tensor] = {}) -> Tensor:
            changed, memory = list(zip(batch, values, strict=True)), locations.memory(rows, values)
            try:
                return repeated(changed, {**memory, **parameters})
            except AbstainError:  # such as a logged loss over all records
                if not memory:
                    raise
                return repeated(changed, parameters)

        carried = flat(replay_with(trace, sums, [Place(total) for total in earlier], 1.0, 1.0))
        self._carried = max(self._carried, float((carried - flat(executed)).norm()) / clip_norm)
        first = flat(executed) if projection is None else repeated([], {})
        moved = 0.0
        for row in self._random.sample(range(records), _RECORDS):
            results = [first, *(replayed(values, [row]) for values in self._values(batch, row))]
            # a record of one token may have no loss, as the mean over no token
            results = [total for total in results if bool(total.isfinite().all())]
            distances = (float((a - b).norm()) for index, a in enumerate(results) for b in results[:index])
            moved = max(moved, *distances, 0.0)
            self._replacements += len(results) - 1
        if not moved:
            raise AbstainError("no replaced record moves the sum")
        half = torch.tensor([self._random.random() < 0.5 for _ in range(records)])
        half[:2] = torch.tensor([True, False])

        def rolled(rows: Tensor, scale: float) -> Tensor:
            return replayed(_rolled(batch, rows, scale), rows.nonzero()[:, 0].tolist())

        unit = max(torch.finfo(total.dtype).eps for total in sums)
        rounding = _ROUNDINGS * unit * ((records + _FEWEST) * clip_norm + float(first.norm()))
        for scale in _SCALES[:2]:
            mixed = first - rolled(half, scale) - rolled(~half, scale) + rolled(half | ~half, scale)
            change = float(mixed.norm())
            self._mixed = max(self._mixed, change / clip_norm if change > rounding else 0.0)
        for scale in _PARAMETER_SCALES:
            parameters = {} if scale == 1.0 else self._scaled_parameters(trace, scale)
            for values in self._equal_records(batch):
                with contextlib.suppress(AbstainError):  # the loop branches on its parameters or records
                    length = float(replayed(values, range(records), parameters).norm())
                    length -= rounding  # of the additions
                    self._longest = max(self._longest, length / records / clip_norm if math.isfinite(length) else 0.0)
        self._moved = max(self._moved, moved / clip_norm)
        self._replayed += 1
        self._replaced.note(batch)
        if projection is not None:
            self._projected += 1
            self.origins.steps[RADIUS] += projection.reads_tensors

    def _omits(self, trace: StepTrace, batch: Sequence[Tensor], drawn: Sequence[Tensor], records: int) -> str:
        """The operation that picks rows of data by the drawn indices, if they are not among the batch; else empty."""
        replaced, indices = {*map(id, batch)}, {*map(id, drawn)}
        produced = set[int]()
        for operation in trace.operations:
            arguments = tensors_in((operation.args, dict(operation.kwargs)))
            results = tensors_in(operation.results)
            if any(id(tensor) in replaced for tensor in arguments):
                replaced |= {*map(id, results)}
            elif any(id(tensor) in indices for tensor in arguments):
                is_data = any(
                    tensor.dim() and not {id(tensor)} & (produced | indices | self._trained) for tensor in arguments
                )
                rows = [tensor for tensor in results if tensor.dim() and len(tensor) == records]
                if is_data and not all(id(tensor) in replaced for tensor in rows):
                    return str(operation.function)
                indices |= {*map(id, results)} - replaced
            produced |= {*map(id, results)}
        return ""

    def _drawn_rows(
        self, trace: StepTrace, drawn: Sequence[Tensor], records: int, dataset_records: int | None
    ) -> list[Tensor]:
        """Copies of the drawn rows of tensors with a row for each record, if the step picks rows one by one.

        A replay replaces the rows in the tensors themselves, where the step reads them.
        """
        indices = _indices_of(drawn)
        if not dataset_records or len(indices) != records or not bool((indices < dataset_records).all()):
            return []
        tables = [
            tensor
            for tensor in trace.tensors_before()
            if tensor.dim() and len(tensor) == dataset_records and id(tensor) not in self._known
        ]
        return [trace.value_before(table)[indices.to(table.device)] for table in tables if not table.is_complex()]

    def _scaled_parameters(self, trace: StepTrace, scale: float) -> dict[int, Tensor]:
        """By address, the memory of the parameters with all numbers times ``scale``."""
        return {
            address_of(parameter): trace.memory_before(parameter).view(parameter.dtype).mul(scale).view(torch.uint8)
            for parameter in self._parameters
            if parameter.is_floating_point() and address_of(parameter)
        }

    def _equal_records(self, batch: Sequence[Tensor]) -> list[list[Tensor]]:
        """Batches of one record, with the values that :meth:`_values` gives it, of its scaled features with its own
        label (one of the two labels is wrong, and gives a large gradient), and with extreme numbers."""
        row = self._random.randrange(len(batch[0]))
        own_label = [tensor.detach().clone() for tensor in batch]
        for value in own_label:
            if value.is_floating_point() and value.numel() > len(value):
                value[row] *= _SCALES[1]
        variants = [*self._values(batch, row), own_label, *self._extreme_numbers(batch)]
        return [[value[row].expand_as(value).clone() for value in values] for values in variants]

    def _extreme_numbers(self, batch: Sequence[Tensor]) -> list[list[Tensor]]:
        """The batch with the largest real number of the dataset for each record, if each record has a real number.

        A loop may multiply clipped gradients by such numbers. If few are large, most batches have none of these.
        """
        values = [tensor.detach().clone() for tensor in batch]
        changed = False
        for value, tensor in zip(values, batch, strict=True):
            source = self._sources.get(id(tensor))
            if source is not None and tensor.is_floating_point() and tensor.numel() == len(tensor):
                numbers = source.detach().reshape(-1)
                value[...] = numbers[numbers.abs().nan_to_num(nan=0.0, posinf=0.0).argmax()]
                changed = True
        return [values] if changed else []

    @staticmethod
    def _in_dataset(drawn: Sequence[Tensor], records: int, dataset_records: int | None) -> DrawnRecords | None:
        """The drawn records in the dataset; None if they are not known."""
        indices = _indices_of(drawn)
        is_known = dataset_records and len(indices) == records and bool((indices < dataset_records).all())
        return DrawnRecords((), indices, dataset_records) if dataset_records and is_known else None

    def _values(self, batch: Sequence[Tensor], row: int) -> list[list[Tensor]]:
        """Batches in which the record of a row has the features of another one, scaled, with each of both labels.

        Tokens cannot be scaled: then the other record changes with each scale, and is cut to its first token.
        """
        other_rows = [donor for donor in range(len(batch[0])) if donor != row]
        labels = [tensor for tensor in batch if tensor.numel() == len(tensor)]
        differing = [donor for donor in other_rows if any(bool((t[donor] != t[row]).any()) for t in labels)]
        is_scaled = any(tensor.is_floating_point() and tensor.numel() > len(tensor) for tensor in batch)
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

    def _batch(self, trace: StepTrace, records: int) -> list[Tensor]:
        """The tensors of the step with a row for each record that it picks from data of before."""
        of_model, picked = {*self._known}, set[int]()
        for operation in trace.operations:
            if of_model & {*map(id, tensors_in((operation.args, dict(operation.kwargs))))}:
                of_model |= {*map(id, tensors_in(operation.results))}
            elif operation.function in _INDEXING:  # tokens that pick rows of the model are values of records
                picked |= {*map(id, tensors_in(operation.args[1:]))}
        produced: set[int] = set()
        computed: set[int] = set()  # from values of the data, such as the indices of nearest neighbors
        data: dict[int, bool] = {}  # of tensors that come from data only, whether they have a row for each record
        batch: list[Tensor] = []
        self._sources = {}

        def is_data(tensor: Tensor) -> bool:
            if id(tensor) not in produced and id(tensor) not in data and not {id(tensor)} & (self._known | picked):
                rows = bool(tensor.dim()) and len(tensor) == records and not tensor.is_complex()
                data[id(tensor)] = rows
                if rows:
                    batch.append(tensor)
            return id(tensor) in data

        for operation in trace.operations:
            arguments = tensors_in((operation.args, dict(operation.kwargs)))
            sources = tensors_in(operation.args[0]) if operation.function in _INDEXING else arguments
            from_data = [is_data(tensor) for tensor in sources]
            results = tensors_in(operation.results)
            is_pick = operation.function in _INDEXING or operation.function in _JOINING
            is_pick = is_pick and not any(id(tensor) in computed for tensor in arguments)
            if is_pick and from_data and all(from_data):
                from_rows = any(data[id(tensor)] for tensor in sources)
                for tensor in results:
                    rows = bool(tensor.dim()) and len(tensor) == records
                    if rows and not from_rows and id(tensor) not in picked and id(tensor) not in produced:
                        batch.append(tensor)
                        if operation.function in _INDEXING and len(sources) == 1:
                            self._sources[id(tensor)] = sources[0]
                    data[id(tensor)] = rows or from_rows
            elif any(id(tensor) in computed or (id(tensor) in data and tensor.dim()) for tensor in arguments):
                computed |= {id(tensor) for tensor in results}
            produced |= {id(tensor) for tensor in results}
        return batch


def _split(row: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The tensors of these shapes in a row of all their coordinates."""
    rows = torch.split(row, [shape.numel() for shape in shapes])
    return [values.view(shape) for values, shape in zip(rows, shapes, strict=True)]


def _indices_of(drawn: Sequence[Tensor]) -> Tensor:
    """The reported indices (b,), if they are one tensor; empty otherwise."""
    return drawn[0].detach().reshape(-1).long() if len(drawn) == 1 else torch.zeros(0, dtype=torch.long)


def _are_equal(indices: Tensor, reported: Tensor) -> bool:
    return torch.equal(indices.cpu(), reported.detach().reshape(-1).long().cpu())


def _indices(trace: StepTrace, drawn: Sequence[Tensor], records: int) -> list[Tensor]:
    """The indices of the records, if they are one tensor of the step."""
    if len(drawn) != 1 or drawn[0].shape != (records,):
        return []
    step_tensors = {
        id(tensor)
        for operation in trace.operations
        for tensor in tensors_in((operation.args, dict(operation.kwargs), operation.results))
    }
    return [drawn[0]] if id(drawn[0]) in step_tensors else []


def _rolled(batch: Sequence[Tensor], rows: Tensor, scale: float) -> list[Tensor]:
    """The batch with the values of the next record, and features times ``scale``, in some rows.

    rows: (b,), whether it is one. Neighbors of a record stay among equal values, so features are scaled too.
    """
    rolled = []
    for tensor in batch:
        value, selected = tensor.detach().clone(), rows.to(tensor.device)
        value[selected] = tensor.detach().roll(-1, 0)[selected]
        if tensor.is_floating_point() and tensor.numel() > len(tensor):
            value[selected] *= scale
        rolled.append(value)
    return rolled
