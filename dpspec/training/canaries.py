"""Canaries: gradients along orthonormal directions, in groups that share a direction, and unusual records.

A group of input canaries consists of equal records, all inserted or none. The adversary may choose the initial weights.

>>> directions = StoredDirections(4, torch.tensor([[0, 2]]), torch.tensor([[0.6, 0.8]]))
>>> directions.directions(torch.tensor([0]))
tensor([[0.6000, 0.0000, 0.8000, 0.0000]])
>>> directions.project(torch.tensor([1.0, 5.0, 1.0, 5.0]))
tensor([1.4000])
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import cos, sin, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpspec.contract import ModelFactory
from dpspec.contract.attacks import Asked, Directions, Records
from dpspec.contract.providers import Observer
from dpspec.training.device import Array, full_precision, generator, send, tensors
from dpspec.training.losses import cross_entropy
from dpspec.training.providers import MOST_FEATURES


class StoredDirections:
    """Sparse orthonormal directions. Implements :class:`~dpspec.contract.attacks.Directions`.

    ``coordinates`` (count, block), int64, are distinct within a row; ``values`` (count, block), float32, are nonzero.
    """

    def __init__(self, parameters: int, coordinates: Tensor, values: Tensor) -> None:
        self.parameters = parameters
        self.count, self.block = coordinates.shape
        self._coordinates, self._values = coordinates, values

    def directions(self, indices: Tensor) -> Tensor:
        rows = torch.zeros(len(indices), self.parameters, device=self._values.device)
        return rows.scatter_(1, *self.supports(indices))

    def supports(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Nonzero coordinates, int64, and values, float32, (b, block) each, of directions ``indices`` (b,)."""
        rows = send(indices, self._values.device)
        return self._coordinates[rows], self._values[rows]

    def project(self, vector: Tensor) -> Tensor:
        return (vector[self._coordinates] * self._values).sum(1)


class InvalidDirectionsError(ValueError): ...


def read_directions(
    directions: Any, count: int, parameters: int, device: str | torch.device
) -> tuple[StoredDirections, float]:
    """Read and validate a plugin's directions; also return the largest deviation from orthonormality.

    All directions are read before any canary is inserted. Otherwise the plugin could infer the inclusion bits from the
    lookups at each step.
    """
    from scipy import sparse

    try:
        coordinates, values = (part.detach().cpu().numpy() for part in directions.supports(torch.arange(count)))
        fits = (directions.count, directions.parameters) == (count, parameters) and coordinates.dtype == np.int64
        fits = fits and coordinates.ndim == 2 and len(coordinates) == count and coordinates.shape == values.shape
        fits = fits and values.dtype.kind == "f" and bool(np.isfinite(values).all())
        fits = fits and bool(((coordinates >= 0) & (coordinates < parameters)).all())
    except (AttributeError, TypeError, ValueError):  # no directions, or not two tensors
        fits = False
    if not fits:
        raise InvalidDirectionsError(
            f"make() does not return {count} directions among {parameters} parameters, with supports() of int64 "
            "coordinates and finite float32 values, a row for each"
        )
    starts = np.arange(count + 1) * coordinates.shape[1]
    rows = sparse.csr_matrix((values.astype(np.float64).ravel(), coordinates.ravel(), starts), (count, parameters))
    twice = bool((np.diff(np.sort(coordinates, axis=1), axis=1) == 0).any())
    off = float("inf") if twice else float(abs(rows @ rows.T - sparse.identity(count)).max())
    copies = torch.from_numpy(coordinates.copy()).to(device), torch.from_numpy(values.astype(np.float32)).to(device)
    return StoredDirections(parameters, *copies), off


class SignBlocks(StoredDirections):
    """``count`` exactly orthonormal directions in ``parameters`` dimensions, in O(parameters) memory.

    Direction i has random signs, divided by sqrt(s), on block i of s = floor(parameters / count) randomly permuted
    coordinates. The seed determines everything, on every device.
    """

    def __init__(self, parameters: int, count: int, *, seed: int, device: str | torch.device = "cpu") -> None:
        if not 1 <= count <= parameters:
            raise ValueError(f"the number of directions must be within 1..{parameters} (the parameters), got {count}")
        block = parameters // count
        source = generator(seed, "directions")
        used = count * block
        order = torch.randperm(parameters, generator=source)[:used]
        signs = torch.randint(0, 2, (used,), generator=source, dtype=torch.int8) * 2 - 1
        values = (signs.view(count, block).to(device, torch.float32)) / sqrt(block)
        super().__init__(parameters, order.view(count, block).to(device), values)


def dense_directions(rows: Array, *, device: str | torch.device = "cpu") -> StoredDirections:
    values = torch.tensor(rows, dtype=torch.float32, device=device)
    count, parameters = values.shape
    return StoredDirections(parameters, torch.arange(parameters, device=device).expand(count, -1), values)


class CanaryGroups:
    """Inserted canaries with gradient ``norm`` * (unit vector) at every step; ``norm`` is well above the clip norm.

    Canaries that own the same direction form a group. Their unit vectors are the direction rotated by the angle
    ``spread``, each member differently, within the direction's support. While ``silent``, all gradients are zero.
    """

    def __init__(
        self, directions: Directions, owner: Tensor, norm: float, *, spread: float = 0.0, seed: int = 0
    ) -> None:
        if spread > 0 and directions.block < 2:
            raise ValueError(f"near-identical members need {2 * directions.count} parameters, two for each direction")
        self._directions = directions
        self.owner, self.count = owner.to(torch.int64), len(owner)
        self._norm = norm
        self._spread = spread
        self._signs: Tensor | None = None
        if spread > 0:  # per row equally many 1 and -1 at random positions, and one 0 if the block is odd
            half = directions.block // 2
            pattern = torch.zeros(directions.block, dtype=torch.int8)
            pattern[:half], pattern[half : 2 * half] = 1, -1
            source = generator(seed, "rotations")
            self._signs = pattern[torch.rand(len(owner), directions.block, generator=source).argsort(1)]
        self.silent = False

    @classmethod
    def planted(cls, directions: Directions, present: Tensor, members: int, norm: float) -> "CanaryGroups":
        return cls(directions, present.nonzero().squeeze(1).repeat_interleave(members), norm)

    def gradients(self, indices: Tensor) -> Tensor:
        coordinates, values = self.sparse(indices)
        rows = torch.zeros(len(indices), self._directions.parameters, device=values.device)
        return rows.scatter_(1, coordinates, values)

    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Nonzero coordinates and values, (b, block) each, of canaries ``indices`` (b,) before clipping."""
        members = send(indices, self.owner.device)
        coordinates, values = self._directions.supports(self.owner[members])
        if self._signs is not None:
            # Balanced signs times the direction are orthogonal to it. For an odd block one entry is 0 and the others
            # are scaled by sqrt(block / (block - 1)).
            signs = self._signs[members].to(values)
            longer = sqrt(self._directions.block / (self._directions.block // 2 * 2))
            values = cos(self._spread) * values + sin(self._spread) * longer * signs * values
        return coordinates, (0.0 if self.silent else self._norm) * values


class Intermittent(Observer):
    """Silence canaries except at steps divisible by k. Must be the last observer of a run."""

    def __init__(self, canaries: CanaryGroups, every: int) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self._canaries = canaries
        self._every = every
        self._step = 0

    def released(self, step: int, state: Tensor) -> None:
        self._step = step
        self._canaries.silent = (step + 1) % self._every != 0

    def state(self) -> Mapping[str, Array]:
        return {"step": np.array(self._step)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.released(int(state.get("step", 0)), torch.empty(0))


class Rows(NamedTuple):
    x: Array
    y: Array
    owner: Array


def plant(x: Array, y: Array, canaries: Records, copies: Array, coins: Array) -> Rows:
    """Append ``copies[i]`` records of canary i for each inclusion bit ``coins[i]`` of 1, in canary order."""
    owner = np.repeat(np.arange(len(copies)), copies * coins)
    return Rows(np.concatenate([x, canaries.x[owner]]), np.concatenate([y, canaries.y[owner]]), owner)


def orthogonal(request: Asked) -> SignBlocks:
    assert request.facts.parameters is not None
    return SignBlocks(request.facts.parameters, request.count, seed=request.seed, device=request.device)


def mislabelled(request: Asked) -> Records:
    (x, y), rng, classes = training_rows(request), np.random.default_rng(request.seed), request.facts.classes
    if classes < 2:
        raise ValueError("mislabelled canaries require at least two classes")
    chosen = _some(request.count, len(x), rng)
    return Records(x[chosen], (y[chosen] + rng.integers(1, classes, size=request.count)) % classes)


def blank(request: Asked) -> Records:
    """Records with all features at their minimum and distinct labels, so at most one per class."""
    (x, y), rng, classes = training_rows(request), np.random.default_rng(request.seed), request.facts.classes
    if request.count > classes:
        raise ValueError(f"there are {classes} blank records at most, one for each label, not {request.count}")
    empty = np.full((request.count, *x.shape[1:]), x.min(), dtype=x.dtype)
    return Records(empty, rng.permutation(classes)[: request.count].astype(y.dtype))


def noise(request: Asked) -> Records:
    """Features uniform between the minimum and maximum of the training records, with random labels.

    Texts get uniform token ids 1..vocabulary - 1; 0 is the padding.
    """
    (x, y), rng, vocabulary = training_rows(request), np.random.default_rng(request.seed), request.facts.vocabulary
    shape = (request.count, *x.shape[1:])
    if vocabulary is not None:
        features = rng.integers(1, vocabulary, size=shape).astype(x.dtype)
    else:
        features = rng.uniform(x.min(), x.max(), size=shape).astype(x.dtype)
    return Records(features, rng.integers(0, request.facts.classes, size=request.count).astype(y.dtype))


def random_direction(request: Asked) -> Records:
    """Records of ``length`` times the largest norm of the training records, with equally many of each label.

    Hidden units with bounded activations saturate, except for a few that differ from canary to canary. So gradients
    overlap little.
    """
    (x, y), rng, classes = training_rows(request), np.random.default_rng(request.seed), request.facts.classes
    if classes < 2:
        raise ValueError("canaries in random directions require at least two classes")
    longest = float(np.sqrt((x.reshape(len(x), -1).astype(np.float64) ** 2).sum(1).max())) or 1.0
    directions = rng.standard_normal((request.count, x[0].size))
    directions *= float(request.options.get("length", 8.0)) * longest / np.linalg.norm(directions, axis=1)[:, None]
    labels = rng.permutation(np.arange(request.count) % classes)
    return Records(directions.reshape(request.count, *x.shape[1:]).astype(x.dtype), labels.astype(y.dtype))


def duplicate(request: Asked) -> Records:
    (x, y), rng = training_rows(request), np.random.default_rng(request.seed)
    chosen = _some(request.count, len(x), rng)
    return Records(x[chosen], y[chosen])


#: Ridge penalty of the label regression, relative to the mean square of the features.
_RIDGE = 1e-3


def least_variance(request: Asked) -> Records:
    """Records of maximum norm along the directions of least variance (last right-singular vectors of ``x``).

    Labels are the least likely ones by ridge regression, then the next; after all labels the opposite direction
    follows. A single record is that of ClipBKD (Jagielski, Ullman and Oprea 2020).
    """
    (x, y), count, classes = training_rows(request), request.count, request.facts.classes
    if request.facts.vocabulary is not None:
        raise ValueError("texts have no directions of least variance")
    flat = x.reshape(len(x), -1).astype(np.float64)
    features = flat.shape[1]
    if features > MOST_FEATURES:
        raise ValueError(f"directions of least variance are supported for at most {MOST_FEATURES} features")
    moments = flat.T @ flat
    directions = np.linalg.eigh(moments)[1].T  # rows, ascending eigenvalues
    # Fix the sign independently of the library: the largest entry is positive.
    largest = np.abs(directions).argmax(1)
    directions *= np.sign(directions[np.arange(features), largest])[:, None]
    length = float(np.sqrt((flat**2).sum(1).max())) or 1.0
    ridge = _RIDGE * float(np.trace(moments)) / features + 1e-12
    weights = np.linalg.solve(moments + ridge * np.eye(features), flat.T @ np.eye(classes)[y.astype(np.int64)])
    number = np.arange(count)
    along, round_ = number % features, number // features
    signs = np.where(round_ // classes % 2 == 0, 1.0, -1.0)
    features_of_canaries = length * signs[:, None] * directions[along]
    labels_by_score = np.argsort(features_of_canaries @ weights, axis=1, kind="stable")
    labels = labels_by_score[number, round_ % classes]
    return Records(features_of_canaries.reshape(count, *x.shape[1:]).astype(x.dtype), labels.astype(y.dtype))


def _some(count: int, records: int, rng: np.random.Generator) -> Array:
    rounds = [rng.permutation(records) for _ in range(-(-count // records))]
    return np.concatenate([np.zeros(0, dtype=np.int64), *rounds])[:count]


def training_rows(request: Asked) -> tuple[Array, Array]:
    if request.x is None or request.y is None or len(request.x) == 0:
        raise ValueError("canaries of this kind require training records")
    return request.x, request.y


#: Mean cross-entropy of a pass at which training stops, and the maximum number of passes.
TARGET_LOSS, _PASSES = 0.01, 200

#: Batch size and Adam's learning rate.
_BATCH, _RATE = 256, 0.01


class PretrainedFactory:
    """A :class:`~dpspec.contract.ModelFactory` whose modules all start from weights fitted to the real records.

    Gradients are small near convergence, so a canary's clipped gradient dominates (Annamalai and De Cristofaro 2024).
    """

    def __init__(
        self, factory: ModelFactory, rows: Callable[[], tuple[Array, Array]], device: Callable[[], str]
    ) -> None:
        """``rows`` returns features (n, ...) and labels (n,), n >= 1; ``device`` returns the device for fitting."""
        self._factory = factory
        self._rows = rows
        self._device = device

    def parameters(self) -> int:
        return self._factory.parameters()

    def build(self, seed: int) -> nn.Module:
        module = self._factory.build(0)
        module.load_state_dict(self._weights)
        return module

    @cached_property
    def _weights(self) -> dict[str, torch.Tensor]:
        module = self._factory.build(0)
        fit(module, *self._rows(), device=self._device())
        return module.state_dict()


def fit(module: nn.Module, x: Array, y: Array, *, device: str = "cpu") -> float:
    """Fit a module in place by cross-entropy and Adam, and move it back to the CPU. Returns the last mean loss."""
    if len(x) == 0:
        raise ValueError("initial weights cannot be fitted without records")
    features, labels = tensors(x, y, device)
    order, mean = generator(0, "pretraining"), 0.0
    module.to(device).eval()  # the mode of the attack, without random layers
    with full_precision(torch.device(device)), torch.enable_grad():
        optimizer = torch.optim.Adam(module.parameters(), lr=_RATE)
        for _ in range(_PASSES):
            total = 0.0
            for batch in torch.split(torch.randperm(len(x), generator=order), _BATCH):
                batch_indices = batch.to(device)
                losses = cross_entropy(module(features[batch_indices]), labels[batch_indices])
                optimizer.zero_grad()
                torch.autograd.backward(losses.mean())
                optimizer.step()
                total += float(losses.detach().sum())
            mean = total / len(x)
            if not np.isfinite(mean):
                raise ValueError("initial weights cannot be fitted to the records: the loss is not finite")
            if mean <= TARGET_LOSS:
                break
    module.to("cpu").train()
    return mean
