"""The clipped sum of a step before the loop clips it again, as a whole or each tensor by itself.

A loop may shorten its sum u, or each tensor of it, to a length of at most S before it adds noise::

    total = [t * (S / norm(total)).clamp(max=1.0) for t in total]

This projection onto a ball, or onto a product of balls, moves no two sums apart, |P(u) - P(v)| <= |u - v|, so that the
result has the sensitivity of u. It is not a sum of contributions of single records, as u is: replays measure u. They do
so only if the operations after u read nothing but u and single numbers, and shorten vectors of all lengths as the
projection does. A factor from other values of the batch, a sum that is scaled to one length, or a factor above 1 may
move sums apart. A radius S in a tensor may come from records of earlier steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpspec_recording.step_replay.gradient_map import GradientMap
from dpspec_recording.step_replay.trace import AbstainError, Operation, StepTrace, address_of, tensors_in, written_by
from dpspec_recording.watching.generators import own_normals

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
    """A sum that a step projects onto a ball, or each of its tensors onto one.

    Attributes:
        sources: The tensors of the sum before.
        trace: The operations until they have their values.
        radii: The length to which longer sums are shortened; of several balls one for each tensor.
        reads_tensors: Whether the projection reads numbers in other tensors, such as a radius.
    """

    def __init__(
        self, sources: Sequence[Tensor], trace: StepTrace, radii: Sequence[float], *, reads_tensors: bool
    ) -> None:
        self.sources, self.trace, self.radii, self.reads_tensors = list(sources), trace, radii, reads_tensors

    def require(self, before: Tensor, after: Tensor) -> None:
        """Raise ``AbstainError`` unless a sum ``after`` is the projection of the sum ``before``, all coordinates."""
        if not _is_projection(before, after, self.radii, _sizes(self.sources, len(self.radii))):
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
    numbers = [number for number, _ in scaled]
    for first in sorted({min(numbers), max(numbers)}):  # a loop may sum and shorten one tensor after the other
        before = trace.part(trace.operations[:first], trace.before)
        if all(map(before.produces, sources)) and (projected := _projection(trace, before, sources, sums, clip_norm)):
            return projected
    return None


def _projection(
    trace: StepTrace, before: StepTrace, sources: Sequence[Tensor], sums: Sequence[Tensor], clip_norm: float
) -> ProjectedSum | None:
    first, end = len(before.operations), len(trace.operations)
    projection = GradientMap(trace, sources, sums, end=end, sources_end=first)
    if projection.draws or any(tensor.numel() != 1 for tensor in projection.inputs):
        return None
    executed = before.replay([], sources)
    for balls in sorted({1, len(executed)}):
        if radii := _radii(projection, executed, clip_norm, balls):
            return ProjectedSum(sources, before, radii, reads_tensors=bool(projection.inputs))
    return None


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


def _radii(projection: GradientMap, executed: Sequence[Tensor], clip_norm: float, balls: int) -> tuple[float, ...]:
    """The radii of ``balls`` balls, of the whole sum or of each tensor; empty if the operations do not project so."""
    sizes = _sizes(executed, balls)
    length = max(float(flat(executed).norm()), clip_norm)
    directions = [flat([own_normals(tensor) for tensor in executed]) for _ in range(2)]
    if all(float(part.norm()) > 0.0 for part in torch.split(flat(executed), sizes)):
        directions.append(flat(executed))
    try:
        pairs = [_mapped(projection, executed, direction, [_LONG * length] * balls, sizes) for direction in directions]
        radii = tuple(float(part.norm()) for part in torch.split(pairs[0][1], sizes))
        # tensors get different lengths: the factor of one must not depend on another
        for number in range(len(_LENGTHS)):
            factors = [_LENGTHS[(number + shift) % len(_LENGTHS)] for shift in range(balls)]
            lengths = [radius * factor for radius, factor in zip(radii, factors, strict=True)]
            pairs += [_mapped(projection, executed, direction, lengths, sizes) for direction in directions]
    except Exception:  # the operations cannot be repeated with these values
        return ()
    # operations that shorten no vector do not show a ball
    are_balls = all(0.0 < radius < 0.5 * _LONG * length for radius in radii)
    return radii if are_balls and all(_is_projection(*pair, radii, sizes) for pair in pairs) else ()


def _sizes(tensors: Sequence[Tensor], balls: int) -> list[int]:
    """The number of coordinates of each ball."""
    sizes = [tensor.numel() for tensor in tensors]
    return sizes if balls == len(sizes) else [sum(sizes)]


def _mapped(
    projection: GradientMap, like: Sequence[Tensor], direction: Tensor, lengths: Sequence[float], sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """A vector with this direction and length in each ball, and its image."""
    vectors = torch.split(direction, sizes)
    scaled = [vector * (length / float(vector.norm())) for vector, length in zip(vectors, lengths, strict=True)]
    whole = torch.cat(scaled)
    tensors = torch.split(whole, [tensor.numel() for tensor in like])
    image = projection.apply(
        [values.view(tensor.shape).to(tensor) for values, tensor in zip(tensors, like, strict=True)]
    )
    return whole, flat(image)


def _is_projection(before: Tensor, after: Tensor, radii: Sequence[float], sizes: list[int]) -> bool:
    return all(map(_is_shortened, torch.split(before, sizes), torch.split(after, sizes), radii))


def _is_shortened(before: Tensor, after: Tensor, radius: float) -> bool:
    length = float(before.norm())
    expected = before * min(1.0, radius / length) if length > 0.0 else before
    return bool((after - expected).norm() <= _ROUNDING * min(length, radius))
