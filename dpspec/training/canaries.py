"""Canaries: gradients along orthonormal directions, a group of records to each, and records that stand out.

Of input canaries a group is equal records, all planted or none. Which records there are follows from the seed, which
groups are planted from the coins.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import cos, pi, sin, sqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dpspec.contract.attacks import Asked, Directions, Records
from dpspec.contract.providers import Observer
from dpspec.training.gradients.fetching import send
from dpspec.training.providers import MOST_FEATURES
from dpspec.training.seeds import generator

Array: TypeAlias = np.ndarray[Any, Any]


class HeldDirections:
    """Orthonormal directions by where they are not zero: ``coordinates`` int64, none of them twice in a row, and
    ``values`` float32, (count, block) each, among ``parameters``. Implements
    :class:`~dpspec.contract.attacks.Directions`."""

    def __init__(self, parameters: int, coordinates: Tensor, values: Tensor) -> None:
        self.parameters = parameters
        self.count, self.block = coordinates.shape
        self._coordinates, self._values = coordinates, values

    def directions(self, indices: Tensor) -> Tensor:
        """The directions ``indices`` (b,) as float32 rows (b, parameters) of length one."""
        rows = torch.zeros(len(indices), self.parameters, device=self._values.device)
        return rows.scatter_(1, *self.supports(indices))

    def supports(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Where the directions ``indices`` (b,) are not zero: coordinates int64 and values float32, (b, block) each."""
        wanted = send(indices, self._values.device)
        return self._coordinates[wanted], self._values[wanted]

    def project(self, vector: Tensor) -> Tensor:
        """The inner products (count,) of ``vector`` (parameters,) with all directions, in O(count block)."""
        return (vector[self._coordinates] * self._values).sum(1)


class UnfitError(ValueError):
    """What was made are no directions; says in what."""


def held(made: Any, count: int, parameters: int, device: str | torch.device) -> tuple[HeldDirections, float]:
    """What directions of somebody else's are, and how far the products of any two are from those of orthonormal ones.

    All are asked for at once, before anything is planted: planted canaries are looked up in every step, and whoever
    answered then would be told the coins. Raises :class:`UnfitError`.
    """
    from scipy import sparse

    if not all(hasattr(made, name) for name in ("parameters", "count", "supports")):
        raise UnfitError(f"make() returns a {type(made).__name__}, not directions")
    if (made.count, made.parameters) != (count, parameters):
        said = f"{made.count} directions among {made.parameters} parameters"
        raise UnfitError(f"make() returns {said}, not {count} among {parameters}")
    found = made.supports(torch.arange(count))
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
        raise UnfitError(f"supports() returns a {type(found).__name__}, not two tensors")
    places, values = (part.detach().cpu().numpy() for part in found)
    fits = places.ndim == 2 and places.shape == values.shape and len(values) == count and places.dtype == np.int64
    if not (fits and values.dtype.kind == "f" and np.isfinite(values).all()):
        said = f"{places.dtype} of shape {places.shape} and {values.dtype} of shape {values.shape}"
        raise UnfitError(f"supports() returns {said}, not int64 and finite float32, {count} rows each")
    if not ((places >= 0) & (places < parameters)).all():
        raise UnfitError(f"supports() returns coordinates beyond 0..{parameters - 1}")
    starts = np.arange(count + 1) * places.shape[1]
    rows = sparse.csr_matrix((values.astype(np.float64).ravel(), places.ravel(), starts), (count, parameters))
    twice = bool((np.diff(np.sort(places, axis=1), axis=1) == 0).any())
    off = float("inf") if twice else float(abs(rows @ rows.T - sparse.identity(count)).max())
    copies = torch.from_numpy(places.copy()).to(device), torch.from_numpy(values.astype(np.float32)).to(device)
    return HeldDirections(parameters, *copies), off


class SignBlocks(HeldDirections):
    """``count`` exactly orthonormal directions in ``parameters`` dimensions, in O(parameters) memory.

    A random permutation of the coordinates is cut into ``count`` blocks of s = floor(parameters / count); direction i
    is random signs on block i, divided by sqrt(s). The seed decides all of it, alike on every device. Coordinates
    that are left over belong to no direction.
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


class DenseDirections:
    """Orthonormal directions that a kind of canary wrote out in full, float32 rows (count, parameters)."""

    def __init__(self, rows: Array, *, device: str | torch.device = "cpu") -> None:
        self.count, self.parameters = rows.shape
        self.block = self.parameters
        self._rows = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)).to(device)

    def directions(self, indices: Tensor) -> Tensor:
        """The directions ``indices`` (b,) as rows (b, parameters)."""
        return self._rows[send(indices, self._rows.device)]

    def supports(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """All coordinates, and the values there, (b, parameters) each."""
        values = self.directions(indices)
        return torch.arange(self.parameters, device=values.device).expand(len(values), -1), values

    def project(self, vector: Tensor) -> Tensor:
        """The inner products (count,) of ``vector`` (parameters,) with all directions."""
        return self._rows @ vector


class CanaryGroups:
    """Planted records, each with the gradient ``norm`` * (a unit vector of its own), at every step.

    Records that own the same direction are the members of one group. Their unit vectors are that direction rotated by
    the angle ``spread``, each member another way: identical at 0, near-identical at small angles. They stay within the
    support of their direction, so that no group is seen along another one's. ``norm`` lies well above the clip norm,
    so that clipping, when it works, leaves exactly the clip norm.

    silent: while it is true all gradients are zero (:class:`Intermittent`).
    """

    def __init__(
        self, directions: Directions, owner: Tensor, norm: float, *, spread: float = 0.0, seed: int = 0
    ) -> None:
        """``owner`` (records,): the direction of each planted record. ``seed`` decides which way members are rotated.

        Raises ``ValueError`` where an argument makes no sense, or the supports leave no room for rotations.
        """
        owner = owner.to(torch.int64)
        if owner.ndim != 1 or (len(owner) and not (int(owner.min()) >= 0 and int(owner.max()) < directions.count)):
            raise ValueError(f"owner must be a vector of directions 0..{directions.count - 1}")
        if not norm > 0:
            raise ValueError(f"the canaries' norm must be above 0, got {norm}")
        if not 0.0 <= spread < pi / 2:
            raise ValueError(f"spread must be an angle in [0, pi/2), got {spread}")
        if spread > 0 and directions.block < 2:
            raise ValueError(f"near-identical members need {2 * directions.count} parameters, two for each direction")
        self._directions = directions
        self._owner = owner
        self._norm = norm
        self._spread = spread
        self._signs = _balanced(len(owner), directions.block, seed) if spread > 0 else None
        self.silent = False

    @classmethod
    def planted(cls, directions: Directions, present: Tensor, members: int, norm: float) -> CanaryGroups:
        """A group of ``members`` records for each direction i with ``present[i]`` (count,), none for the others."""
        if members < 1:
            raise ValueError(f"a group has at least one member, got {members}")
        return cls(directions, present.nonzero().squeeze(1).repeat_interleave(members), norm)

    @property
    def count(self) -> int:
        """How many records are planted."""
        return len(self._owner)

    @property
    def owner(self) -> Tensor:
        """The direction (records,) of each planted record."""
        return self._owner

    def gradients(self, indices: Tensor) -> Tensor:
        """The gradients (b, parameters) of planted records ``indices`` (b,), before clipping."""
        coordinates, values = self.sparse(indices)
        rows = torch.zeros(len(indices), self._directions.parameters, device=values.device)
        return rows.scatter_(1, coordinates, values)

    def sparse(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Where those gradients are not zero: coordinates and values, (b, block) each.

        A training loop that knows this method clips and sums canaries in O(b block), never holding (b, parameters).
        """
        members = send(indices, self._owner.device)
        coordinates, values = self._directions.supports(self._owner[members])
        if self._signs is not None:
            # Balanced signs times the direction are orthogonal to it. Over an odd block one entry is zero, and the
            # others are longer by sqrt(block / (block - 1)).
            signs = self._signs[members].to(values)
            longer = sqrt(self._directions.block / (self._directions.block // 2 * 2))
            values = cos(self._spread) * values + sin(self._spread) * longer * signs * values
        return coordinates, (0.0 if self.silent else self._norm) * values


class Intermittent(Observer):
    """Lets canaries have gradients in every k-th step alone, those whose numbers k divides; the last observer of a run.

    A step's gradients are those at the time between the release of the model before it and its own.
    """

    def __init__(self, canaries: CanaryGroups, every: int) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self._canaries = canaries
        self._every = every
        self._step = 0

    def released(self, step: int, state: Tensor) -> None:
        """Set what the step after ``step`` adds."""
        self._step = step
        self._canaries.silent = (step + 1) % self._every != 0

    def state(self) -> Mapping[str, Array]:
        """The step that was released last."""
        return {"step": np.array(self._step)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on after that step; an empty memory begins anew."""
        self.released(int(state.get("step", 0)), torch.empty(0))


def _balanced(rows: int, width: int, seed: int) -> Tensor:
    """(rows, width) int8: as many 1 as -1 in each row, in random places, and a 0 where ``width`` is odd."""
    pattern = torch.zeros(width, dtype=torch.int8)
    pattern[: width // 2], pattern[width // 2 : width // 2 * 2] = 1, -1
    order = torch.rand(rows, width, generator=generator(seed, "rotations")).argsort(1)
    return pattern[order]


class Rows(NamedTuple):
    """A training set with planted records appended, and which canary each planted one is: ``owner`` (planted,)."""

    x: Array
    y: Array
    owner: Array


def plant(x: Array, y: Array, canaries: Records, copies: Array, coins: Array) -> Rows:
    """Append ``copies[i]`` records equal to canary i for each ``coins[i]`` that is 1; the order of canaries is kept."""
    owner = np.repeat(np.arange(len(copies)), copies * coins)
    return Rows(np.concatenate([x, canaries.x[owner]]), np.concatenate([y, canaries.y[owner]]), owner)


def orthogonal(asked: Asked) -> SignBlocks:
    """Directions that are random signs on coordinates of their own."""
    assert asked.facts.parameters is not None
    return SignBlocks(asked.facts.parameters, asked.count, seed=asked.seed, device=asked.device)


def mislabelled(asked: Asked) -> Records:
    """Training records with a wrong label, taken without repetition as long as there are enough of them."""
    (x, y), rng, classes = _rows(asked), np.random.default_rng(asked.seed), asked.facts.classes
    if classes < 2:
        raise ValueError("a record cannot be mislabelled where there is one class only")
    chosen = _some(asked.count, len(x), rng)
    return Records(x[chosen], (y[chosen] + rng.integers(1, classes, size=asked.count)) % classes)


def blank(asked: Asked) -> Records:
    """All features at their smallest value, each with another label, so that there are no more than classes."""
    (x, y), rng, classes = _rows(asked), np.random.default_rng(asked.seed), asked.facts.classes
    if asked.count > classes:
        raise ValueError(f"there are {classes} blank records at most, one for each label, not {asked.count}")
    empty = np.full((asked.count, *x.shape[1:]), x.min(), dtype=x.dtype)
    return Records(empty, rng.permutation(classes)[: asked.count].astype(y.dtype))


def noise(asked: Asked) -> Records:
    """Features uniform between the smallest and the largest value of the training records, and random labels.

    Of texts, ids 1..vocabulary - 1, any as likely: 0 is the padding.
    """
    (x, y), rng, vocabulary = _rows(asked), np.random.default_rng(asked.seed), asked.facts.vocabulary
    shape = (asked.count, *x.shape[1:])
    if vocabulary is not None:
        features = rng.integers(1, vocabulary, size=shape).astype(x.dtype)
    else:
        features = rng.uniform(x.min(), x.max(), size=shape).astype(x.dtype)
    return Records(features, rng.integers(0, asked.facts.classes, size=asked.count).astype(y.dtype))


def duplicate(asked: Asked) -> Records:
    """Training records as they are, taken without repetition as long as there are enough of them."""
    (x, y), rng = _rows(asked), np.random.default_rng(asked.seed)
    chosen = _some(asked.count, len(x), rng)
    return Records(x[chosen], y[chosen])


#: Of the mean square of the features, what is added before labels are regressed on them.
_RIDGE = 1e-3


def least_variance(asked: Asked) -> Records:
    """Records as long as the longest, in the directions in which the training records reach least (the last
    right-singular vectors of ``x``).

    Each has the label that a ridge regression finds least likely there, then with the next, and once labels are used up
    on the other side. One alone is the record of ClipBKD (Jagielski, Ullman & Oprea 2020).
    """
    (x, y), count, classes = _rows(asked), asked.count, asked.facts.classes
    if asked.facts.vocabulary is not None:
        raise ValueError("texts have no directions of least variance")
    flat = x.reshape(len(x), -1).astype(np.float64)
    features = flat.shape[1]
    if features > MOST_FEATURES:
        raise ValueError(f"directions of least variance are found among {MOST_FEATURES} features at most")
    moments = flat.T @ flat
    directions = np.linalg.eigh(moments)[1].T  # rows, the least first
    # A sign that no library decides: the largest entry points up.
    largest = np.abs(directions).argmax(1)
    directions *= np.sign(directions[np.arange(features), largest])[:, None]
    length = float(np.sqrt((flat**2).sum(1).max())) or 1.0
    ridge = _RIDGE * float(np.trace(moments)) / features + 1e-12
    weights = np.linalg.solve(moments + ridge * np.eye(features), flat.T @ np.eye(classes)[y.astype(np.int64)])
    number = np.arange(count)
    along, round_ = number % features, number // features
    signs = np.where(round_ // classes % 2 == 0, 1.0, -1.0)
    made = length * signs[:, None] * directions[along]
    likely = np.argsort(made @ weights, axis=1, kind="stable")
    labels = likely[number, round_ % classes]
    return Records(made.reshape(count, *x.shape[1:]).astype(x.dtype), labels.astype(y.dtype))


def _some(count: int, records: int, rng: np.random.Generator) -> Array:
    rounds = [rng.permutation(records) for _ in range(-(-count // records))]
    return np.concatenate([np.zeros(0, dtype=np.int64), *rounds])[:count]


def _rows(asked: Asked) -> tuple[Array, Array]:
    """The training records; raises ``ValueError`` where there are none."""
    if asked.x is None or asked.y is None or len(asked.x) == 0:
        raise ValueError("canaries are made after training records, and there are none")
    return asked.x, asked.y
