"""The batch of a custom loop: the tensors of a step that have a row for each record that it picks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dpspec_recording.step_replay.held_records import DrawnRecords
from dpspec_recording.step_replay.trace import AbstainError, StepTrace, tensors_in

_ATEN = torch.ops.aten

#: Operations that pick rows of a dataset, and operations that join rows or give them another form.
_INDEXING = (_ATEN.index.Tensor, _ATEN.index_select.default, _ATEN.embedding.default)
_JOINING = (
    *(_ATEN.stack.default, _ATEN.cat.default, _ATEN.select.int, _ATEN.slice.Tensor, _ATEN.unsqueeze.default),
    *(_ATEN.view.default, _ATEN.alias.default, _ATEN.detach.default, _ATEN._to_copy.default, _ATEN.clone.default),
    *(_ATEN.lift_fresh.default, _ATEN.unbind.int, _ATEN.squeeze.dim),
)


class LoopBatch:
    """Finds the batch of a step.

    Attributes:
        tensors: Its tensors, each with a row for each record.
        sources: By tensor of the batch that was taken from it: tensors with a row for each record of the dataset.
        drawn: The drawn records in the dataset; None if they are not known.
    """

    def __init__(
        self,
        trace: StepTrace,
        records: int,
        drawn: Sequence[Tensor],
        dataset_records: int | None,
        model_ids: Collection[int],
        trained: Collection[int],
    ) -> None:
        """Search a stopped trace.

        Args:
            trace: Of the step, up to its sum.
            records: The number of drawn records.
            drawn: The tensors of indices that the loop reported.
            dataset_records: The number of records of the dataset, if it is known.
            model_ids: The numbers (``id``) of the model's tensors.
            trained: The same of its trained parameters.

        Raises:
            AbstainError: No replay can replace the records.
        """
        self.sources: dict[int, Tensor] = {}
        indices = drawn[0].detach().reshape(-1).long() if len(drawn) == 1 else torch.zeros(0, dtype=torch.long)
        is_known = len(indices) == records and bool((indices < (dataset_records or 0)).all())
        self.drawn = DrawnRecords((), indices, dataset_records or 0) if is_known else None
        self.tensors = self._picked(trace, records, model_ids)
        if self.tensors and (picking := self._omitted_by(trace, records, drawn, trained)):
            raise AbstainError(
                f"{picking} reads a row for each drawn record that no replay replaces: pick rows by indexing or "
                "index_select"
            )
        self.tensors = self.tensors or self._rows(trace, model_ids) or _indices(trace, drawn, records)
        if not self.tensors:
            raise AbstainError("it has no tensor with a row for each drawn record")

    def _picked(self, trace: StepTrace, records: int, model_ids: Collection[int]) -> list[Tensor]:
        """The tensors with a row for each record that the step picks from data of before."""
        of_model, picked = {*model_ids}, set[int]()
        for operation in trace.operations:
            if of_model & {*map(id, tensors_in((operation.args, dict(operation.kwargs))))}:
                of_model |= {*map(id, tensors_in(operation.results))}
            elif operation.function in _INDEXING:  # tokens that pick rows of the model are values of records
                picked |= {*map(id, tensors_in(operation.args[1:]))}
        produced: set[int] = set()
        computed: set[int] = set()  # from values of the data, such as the indices of nearest neighbors
        data: dict[int, bool] = {}  # of tensors that come from data only, whether they have a row for each record
        batch: list[Tensor] = []

        def is_data(tensor: Tensor) -> bool:
            if id(tensor) not in produced and id(tensor) not in data and not {id(tensor)} & {*model_ids, *picked}:
                rows = bool(tensor.dim()) and len(tensor) == records and not tensor.is_complex() and _differs(tensor)
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
                    rows = rows and (operation.function in _INDEXING or _differs(tensor))
                    if rows and not from_rows and id(tensor) not in picked and id(tensor) not in produced:
                        batch.append(tensor)
                        if operation.function in _INDEXING and len(sources) == 1:
                            self.sources[id(tensor)] = sources[0]
                    data[id(tensor)] = rows or from_rows
            elif any(id(tensor) in computed or (id(tensor) in data and tensor.dim()) for tensor in arguments):
                computed |= {id(tensor) for tensor in results}
            produced |= {id(tensor) for tensor in results}
        return batch

    def _omitted_by(self, trace: StepTrace, records: int, drawn: Sequence[Tensor], trained: Collection[int]) -> str:
        """The operation that picks rows of data by the drawn indices, if they are not among the batch; else empty."""
        replaced, indices = {*map(id, self.tensors)}, {*map(id, drawn)}
        produced = set[int]()
        for operation in trace.operations:
            arguments = tensors_in((operation.args, dict(operation.kwargs)))
            results = tensors_in(operation.results)
            if any(id(tensor) in replaced for tensor in arguments):
                replaced |= {*map(id, results)}
            elif any(id(tensor) in indices for tensor in arguments):
                skipped = {*produced, *indices, *trained}
                is_data = any(tensor.dim() and id(tensor) not in skipped for tensor in arguments)
                rows = [tensor for tensor in results if tensor.dim() and len(tensor) == records]
                if is_data and not all(id(tensor) in replaced for tensor in rows):
                    return str(operation.function)
                indices |= {*map(id, results)} - replaced
            produced |= {*map(id, results)}
        return ""

    def _rows(self, trace: StepTrace, model_ids: Collection[int]) -> list[Tensor]:
        """Copies of the drawn rows of tensors with a row for each record, if the step picks rows one by one.

        A replay replaces the rows in the tensors themselves, where the step reads them.
        """
        if self.drawn is None:
            return []
        tables = [
            tensor
            for tensor in trace.tensors_before()
            if tensor.dim() and len(tensor) == self.drawn.records and id(tensor) not in model_ids
        ]
        indices = self.drawn.indices
        return [trace.value_before(table)[indices.to(table.device)] for table in tables if not table.is_complex()]


def _differs(tensor: Tensor) -> bool:
    """Whether some rows are different: rows such as the sizes of groups of one record hold no records."""
    return bool((tensor != tensor[:1]).any())


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
