"""The contributions of a run that draws users: one for each, and one for each gradient canary."""

from __future__ import annotations

from torch import Tensor

from dpspec.contract.providers import GradientCanaries
from dpspec.training.gradients import users
from dpspec.training.gradients.clipping import Clip
from dpspec.training.gradients.contributions import RecordsAndCanaries
from dpspec.training.gradients.persample import ClippedSum, FlatModel
from dpspec.training.loop.checkpoint import Memory, Random
from dpspec.training.seeds import generator


class UsersAndCanaries(RecordsAndCanaries):
    """Contributions 0..n-1 are those of users; n..n+count-1 are gradient canaries, each one contribution as well.

    Which records of users are averaged, a generator of its own decides, which a resumed run goes on with.
    """

    def __init__(
        self, model: FlatModel, x: Tensor, y: Tensor, canaries: GradientCanaries | None = None, *, most: int, seed: int
    ) -> None:
        """``x`` (n, k, ...) and ``y`` (n, k) stand on the model's device; ``most``: records of a user in one step."""
        if y.ndim != 2 or x.shape[:2] != y.shape:
            raise ValueError(f"users must be (users, records, ...) and (users, records), got {x.shape} and {y.shape}")
        if not bool((y >= 0).any(1).all()):
            raise ValueError("every user needs a record")
        super().__init__(model, x, y, canaries)
        self._there = (y >= 0).cpu()
        self._most, self._seed = most, seed
        self.restore({})

    def state(self) -> Memory:
        """The place in the stream of choices."""
        return Random(self._source).state()

    def restore(self, state: Memory) -> None:
        """Go on there; an empty memory begins anew."""
        self._source = generator(self._seed, "records of users")
        Random(self._source).restore(state)

    def _real(self, state: Tensor, rows: Tensor, clip_norm: Clip) -> ClippedSum:
        weights = users.one_choice(self._there[rows.cpu()], self._most, self._source)
        return users.clipped_sum(self._model, state, self._x[rows], self._y[rows], weights, clip_norm)
