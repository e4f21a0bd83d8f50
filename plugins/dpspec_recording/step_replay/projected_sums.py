"""The clipped sum of a step before the loop clips it again as a whole.

A loop may shorten its sum u to a length of at most S before it adds noise::

    total = [t * (S / norm(total)).clamp(max=1.0) for t in total]

This projection onto a ball moves no two sums apart, |P(u) - P(v)| <= |u - v|, so that the result has the sensitivity of
u. It is not a sum of contributions of single records, as u is: replays measure u. They do so only if the operations
after u read nothing but u and single numbers, and shorten vectors of all lengths as the projection does. A factor from
other values of the batch, a sum that is scaled to one length, or a factor above 1 may move sums apart. A radius S in a
tensor may come from records of earlier steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpspec_recording.step_replay.gradient_map import GradientMap
from dpspec_recording.step_replay.trace import AbstainError, Operation, StepTrace, address_of, tensors_in, written_by

_ATEN = torch.ops.aten

#: Operations that multiply or divide a tensor, or each of a list, by a number in a tensor.
_SCALINGS = {
    *(_ATEN.mul.Tensor, _ATEN.mul_.Tensor, _ATEN.div.Tensor, _ATEN.div_.Tensor),
    *(_ATEN._foreach_mul.Tensor, _ATEN._foreach_mul_.Tensor, _ATEN._foreach_div.Tensor, _ATEN._foreach_div_.Tensor),
}

#: Operations that copy a tensor.
_COPIES = {_ATEN.clone.default, _ATEN._to_copy.default}

#: Lengths of vectors, relative to the radius, and one that is longer than each radius, relative to the executed sum.
_LENGTHS, _LONG = (1e-3, 0.1, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 10.0, 1e3), 1e6

#: Relative rounding of a projection. torch's clip_grad_norm_ adds 1e-6 to the norm.
_ROUNDING = 1e-4


class ProjectedSum:
    """A sum that a step projects onto the ball of a radius.

    Attributes:
        sources: The tensors of the sum before.
        trace: The operations until they have their values.
        radius: The length to which longer sums are shortened.
        reads_tensors: Whether the projection reads numbers in other tensors, such as a radius.
    """

    def __init__(self, sources: Sequence[Tensor], trace: StepTrace, radius: float, *, reads_tensors: bool) -> None:
        self.sources, self.trace, self.radius, self.reads_tensors = list(sources), trace, radius, reads_tensors

    def require(self, before: Tensor, after: Tensor) -> None:
        """Raise ``AbstainError`` unless a sum ``after`` is the projection of the sum ``before``, all coordinates."""
        if not _is_projection(before, after, self.radius):
            raise AbstainError("the sum is scaled as a whole, by a factor that depends on more than the sum")


def projected_sum(trace: StepTrace, sums: Sequence[Tensor], clip_norm: float) -> ProjectedSum | None:
    """Find the sum before its projection; None if the sum is not projected.

    Args:
        trace: The stopped trace.
        sums: The reported sum.
        clip_norm: The maximum norm of a contribution.
    """
    scaled = [scaling for total in sums if (scaling := _scaled(trace, total)) is not None]
    if not scaled or len(scaled) < len(sums):
        return None
    sources = list({id(tensor): tensor for _, tensor in scaled}.values())
    if sum(map(Tensor.numel, sources)) != sum(map(Tensor.numel, sums)):  # the sum omits some coordinates
        return None
    first, end = min(number for number, _ in scaled), len(trace.operations)
    projection = GradientMap(trace, sources, sums, end=end, sources_end=first, parameters=())
    if projection.draws or any(tensor.numel() != 1 for tensor in projection.inputs):
        return None
    before = trace.part(trace.operations[:first], trace.before)
    executed = before.replay([], sources)
    radius = _radius(projection, executed, clip_norm)
    return None if radius is None else ProjectedSum(sources, before, radius, reads_tensors=bool(projection.inputs))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All coordinates in double precision."""
    return torch.cat([tensor.double().reshape(-1) for tensor in tensors])


def _scaled(trace: StepTrace, total: Tensor) -> tuple[int, Tensor] | None:
    """The operation that scales a tensor as the last one, by its number, and the tensor before."""
    address = address_of(total)
    for number in reversed(range(len(trace.operations))):
        operation = trace.operations[number]
        if address not in _written(operation):
            continue
        if operation.function in _COPIES:
            address = address_of(operation.args[0])
            continue
        if operation.function not in _SCALINGS:
            return None
        operands, *factors = operation.args
        if not isinstance(operands, Tensor):
            pairs = zip(operands, operation.addresses or map(address_of, operands), strict=True)
            operands = next((operand for operand, result in pairs if result == address), None)
        elif operands.numel() == 1 and isinstance(factors[0], Tensor):  # the factor comes first
            operands, factors = factors[0], [operands]
        is_scaling = isinstance(factors[0], Tensor) and factors[0].numel() == 1 and operands is not None
        return (number, operands) if is_scaling else None
    return None


def _written(operation: Operation) -> set[int]:
    """The addresses of the memory that an operation writes or allocates; none of views."""
    written = {*map(address_of, written_by(operation.function, operation.args, operation.kwargs))}
    arguments = {*map(address_of, tensors_in((operation.args, dict(operation.kwargs))))}
    return (written | ({*operation.addresses} - arguments)) - {0}


def _radius(projection: GradientMap, executed: Sequence[Tensor], clip_norm: float) -> float | None:
    """The radius of the ball; None if the operations do not project onto one."""
    length = max(float(flat(executed).norm()), clip_norm)
    directions = [[torch.randn_like(tensor) for tensor in executed] for _ in range(2)]
    if float(flat(executed).norm()) > 0.0:
        directions.append(list(executed))
    try:
        pairs = [_mapped(projection, direction, _LONG * length) for direction in directions]
        radius = float(pairs[0][1].norm())
        pairs += [_mapped(projection, direction, radius * c) for direction in directions for c in _LENGTHS]
    except Exception:  # the operations cannot be repeated with these values
        return None
    # operations that shorten no vector do not show a ball
    is_ball = 0.0 < radius < 0.5 * _LONG * length
    return radius if is_ball and all(_is_projection(*pair, radius) for pair in pairs) else None


def _mapped(projection: GradientMap, direction: Sequence[Tensor], length: float) -> tuple[Tensor, Tensor]:
    """A vector with this direction and length, and its image."""
    factor = length / float(flat(direction).norm())
    vector = [tensor * factor for tensor in direction]
    return flat(vector), flat(projection.apply(vector))


def _is_projection(before: Tensor, after: Tensor, radius: float) -> bool:
    length = float(before.norm())
    expected = before * min(1.0, radius / length) if length > 0.0 else before
    return bool((after - expected).norm() <= _ROUNDING * min(length, radius))
