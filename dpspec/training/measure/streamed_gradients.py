"""Products with the clipped gradients of many records, without storing a gradient."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from dpspec.training.device import Array, full_precision
from dpspec.training.gradients.persample import FlatModel, clip_factors

#: Records per pass.
_CHUNK = 1024


class StreamedGradients:
    """The matrix E (m, P): row i is the sum over models of a weight times the clipped gradient of record i.

    With f_i the weight times the clipping factor, E^T u is the gradient of sum_i u_i f_i loss_i by the parameters, and
    E v is the derivative of <E^T u, v> by u. Both take a few passes over the records. ``norms`` (m,), float64, are the
    sums of the rows' norms over models: the norms of the rows if gradients keep their directions.
    """

    def __init__(self, model: FlatModel, x: Tensor, y: Tensor) -> None:
        self._model, self._x, self._y = model, x, y
        self._factors: list[tuple[Tensor, Tensor]] = []
        self.norms = torch.zeros(len(x), dtype=torch.float64, device=x.device)

    def add(self, state: Tensor, weight: float, clip_norm: float) -> None:
        """Add ``weight`` times the gradients at ``state`` (P,), clipped to ``clip_norm``; zero if not finite."""
        norms, _ = self._model.look(state, self._x, self._y)
        factors = weight * clip_factors(norms, clip_norm)
        self._factors.append((state.detach(), factors))
        self.norms += torch.where(norms.isfinite(), norms * factors, 0.0)

    def transposed(self, weights: Tensor) -> Tensor:
        """E^T ``weights`` (m,), of shape (P,)."""
        total = torch.zeros_like(self._factors[0][0])
        for state, rows, factors in self._passes():
            parameters = state.requires_grad_()
            total += torch.autograd.grad(self._losses(parameters, rows, weights[rows] * factors), parameters)[0]
        return total

    def times(self, direction: Tensor) -> Tensor:
        """E ``direction`` (P,), of shape (m,)."""
        products = torch.zeros(len(self._x), device=direction.device)
        for state, rows, factors in self._passes():
            parameters, weights = state.requires_grad_(), torch.ones_like(factors, requires_grad=True)
            total = self._losses(parameters, rows, weights * factors)
            (gradient,) = torch.autograd.grad(total, parameters, create_graph=True)
            products[rows] += torch.autograd.grad(gradient @ direction, weights)[0]
        return products

    def _passes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Models, and indices and factors of a chunk of records with a factor above 0."""
        with torch.enable_grad(), full_precision(self._model.device):
            for state, factors in self._factors:
                for rows in torch.split(factors.nonzero().squeeze(1), _CHUNK):
                    yield state.clone(), rows, factors[rows]

    def _losses(self, parameters: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        outputs = self._model.forward(self._model.layout.unflatten(parameters), self._x[rows])
        return (weights * self._model.loss(outputs, self._y[rows])).sum()


def conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve A x = ``right`` (n,) for a symmetric positive definite A, given its ``product``, to a residual of 1e-5."""
    from scipy.sparse.linalg import LinearOperator, cg  # takes long to import

    def as_arrays(vector: Array) -> Array:
        return np.asarray(product(torch.from_numpy(vector).to(right)).cpu().numpy())

    values = right.cpu().numpy()
    operator = LinearOperator((len(values), len(values)), matvec=as_arrays, dtype=values.dtype)
    return torch.from_numpy(cg(operator, values, maxiter=50)[0]).to(right)
