"""DP-SGD with jax-privacy and optax: one call in each step, and the plan's event compared with the executed steps.

    with record_steps("run", params, optimizer, clip_norm=1.0, noise_multiplier=1.2, rate=0.05, records=1000) as steps:
        for drawn in plan.batch_selection_strategy.batch_iterator(1000):
            ...
            steps.report(drawn, aux.grad_norms, total, noisy, gradient, params)
    print(differences("run", plan.dp_event), dpspec.check("run", epsilon=4))

The guide ``docs/how-to/audit-your-own-loop.md`` has a script. Requires jax. The optimizer is of optax, or None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpspec
from dpspec.engine.declared_history import read_history
from dpspec.errors import UsageError
from dpspec_recording.folder.events import PublicStep
from dpspec_recording.folder.recording import open_run
from dpspec_recording.observers.all import OBSERVERS
from dpspec_recording.recorder import Recorder


class _Tree:
    """The pytree of the parameters. The recorder gets its trained leaves as a list."""

    def __init__(self, params: Any, frozen: Any) -> None:
        leaves, self._structure = jax.tree.flatten(params)
        flags = jax.tree.map(lambda flag, part: jax.tree.map(lambda _: bool(flag), part), frozen, params)
        self._frozen = [
            np.array(leaf) if flag else None for leaf, flag in zip(leaves, jax.tree.leaves(flags), strict=True)
        ]

    def trained(self, tree: Any) -> list[Any]:
        """The leaves of a pytree that are not frozen."""
        leaves = jax.tree.leaves(tree)
        if len(leaves) != len(self._frozen):
            raise UsageError(f"report got a pytree of {len(leaves)} arrays, the parameters have {len(self._frozen)}")
        return [leaf for leaf, fixed in zip(leaves, self._frozen, strict=True) if fixed is None]

    def require_frozen(self, params: Any) -> None:
        """Raise ``UsageError`` if a frozen leaf has other values than before the first step."""
        named_leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        for (path, leaf), fixed in zip(named_leaves, self._frozen, strict=True):
            if fixed is not None and not np.array_equal(fixed, np.asarray(leaf), equal_nan=True):
                raise UsageError(f"params{jax.tree_util.keystr(path)} is declared frozen, and moved")

    def on_leaves(self, optimizer: Any) -> Any:
        """The optimizer for lists of trained leaves: its labels and masks may name places in the whole tree."""
        if not hasattr(optimizer, "_replace"):  # None, or an object with methods, such as ``optax.MultiSteps``
            return optimizer
        structure, frozen = self._structure, self._frozen

        def whole(leaves: Any, fill: Any) -> Any:
            trained_leaves = iter(leaves)
            return structure.unflatten([next(trained_leaves) if fixed is None else fill(fixed) for fixed in frozen])

        def init(leaves: Any) -> Any:
            return optimizer.init(whole(leaves, np.copy))

        def update(gradients: Any, state: Any, leaves: Any) -> Any:
            updates, state = optimizer.update(whole(gradients, np.zeros_like), state, whole(leaves, np.copy))
            moved = zip(jax.tree.leaves(updates), frozen, strict=True)
            return [leaf for leaf, fixed in moved if fixed is None], state

        return optimizer._replace(init=init, update=update)


class Steps:
    """Reports the steps of one training to a recorder; made by :func:`record_steps`."""

    def __init__(self, recorder: Recorder, clip_norm: float, tree: _Tree) -> None:
        self._recorder, self._clip_norm, self._tree = recorder, clip_norm, tree

    def report(self, drawn: Any, grad_norms: Any, total: Any, noisy: Any, gradient: Any, params: Any) -> None:
        """Report one step, after the parameters moved.

        Args:
            drawn: The numbers of the drawn records, (b,). Numbers below 0 fill the batch.
            grad_norms: The norms of their gradients before clipping, (b,) or longer if the batch is filled at its end.
            total: The sum of the clipped gradients, a pytree.
            noisy: The same with noise.
            gradient: The gradient that the optimizer got: ``noisy`` over a divisor.
            params: The parameters after the step.

        Raises:
            UsageError: There are fewer norms than drawn records, the trees differ from the parameters, or a frozen leaf
                moved.
        """
        numbers, norms = np.asarray(drawn), np.asarray(grad_norms)
        if len(norms) < len(numbers):
            raise UsageError(f"report got {len(norms)} norms of {len(numbers)} records: give return_grad_norms=True")
        members = numbers >= 0
        self._recorder.sampled(numbers[members])
        self._recorder.clipped(np.minimum(norms[: len(numbers)][members], self._clip_norm))
        sums = self._tree.trained(total)
        self._tree.require_frozen(params)
        self._recorder.summed(sums)
        self._recorder.noised([after - before for after, before in zip(self._tree.trained(noisy), sums, strict=True)])
        self._recorder.stepped(parameters=self._tree.trained(params), gradients=self._tree.trained(gradient))

    def epsilon(self, delta: float) -> float:
        """The certified epsilon of the recorded steps at ``delta`` in (0, 1)."""
        return self._recorder.epsilon(delta)


@contextmanager
def record_steps(
    folder: str | PathLike[str], params: Any, optimizer: Any, *, clip_norm: float, frozen: Any = False, **declared: Any
) -> Iterator[Steps]:
    """Record DP-SGD.

    Args:
        folder: The recording's folder, as for ``dpspec.record``.
        params: The parameters before the first step, a pytree of arrays.
        optimizer: The gradient transformation of optax, or None.
        clip_norm: The largest l2 norm of one record's contribution, > 0.
        frozen: True for each leaf that no step moves, which needs no noise: a pytree of bool, or a prefix of one.
        **declared: ``noise_multiplier``, ``rate`` and ``records`` of ``dpspec.record``.

    Yields:
        The reporter of the steps.
    """
    tree = _Tree(params, frozen)
    leaves, rule = tree.trained(params), tree.on_leaves(optimizer)
    with dpspec.record(folder, model=leaves, optimizer=rule, clip_norm=clip_norm, **declared) as recorder:
        yield Steps(recorder, clip_norm, tree)


def differences(folder: str | PathLike[str], event: Any) -> list[str]:
    """Sentences on the differences of a plan's event from the recorded steps; empty if they agree.

    Args:
        folder: The folder of :func:`record_steps`.
        event: ``plan.dp_event`` of jax-privacy, or another event of dp-accounting.

    Raises:
        HistoryError: The event has no bound in ``dpspec check --history``.
    """
    planned: Counter[str] = Counter()
    for release in read_history(event.to_named_tuple()).releases:
        cap = f", at most {release['max_batch']} records" if "max_batch" in release else ""
        key = f"{release['kind']} noise {release.get('sigma', 0):.6g}, rate {release.get('rate', 1.0):.6g}{cap}"
        planned[key] += int(str(release["times"]))
    executed: Counter[str] = Counter()
    for step in open_run(Path(folder), OBSERVERS).steps():
        if isinstance(step, PublicStep):
            executed[f"gaussian noise {step.noise_multiplier:.6g}, rate {step.rate:.6g}"] += 1
    return [
        f"{key}: {planned[key]} steps in the plan, {executed[key]} executed"
        for key in sorted(planned | executed)
        if planned[key] != executed[key]
    ]
