"""The function ``dpspec.check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from dpspec.api import File
from dpspec.results.checked_run import CheckedRun
from dpspec_recording.judge.check import check_run
from dpspec_recording.judge.run_claim import RunClaim


def check(
    run: File,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    group_size: int | Sequence[int] = 1,
    adjacency: str = "zero-out",
    model: File | Mapping[str, Any] | None = None,
    public: Sequence[str] = (),
    assume: Sequence[str] = (),
    accept: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    declare: File | None = None,
) -> CheckedRun:
    """Compare a recorded training with a claim, like ``dpspec check``.

        assert dpspec.check("run", epsilon=8, delta=1e-5).passed

    Args:
        run: The folder that :func:`dpspec.record` wrote.
        epsilon: The claim; None for no claim.
        delta: Of the claim, in (0, 1).
        group_size: The number of records of one person; of several numbers the claim is about the first.
        adjacency: ``zero-out`` or ``add-remove``.
        model: The model to be released, to compare with the recording's end: a file of safetensors or ``torch.save``
            (``.pt``, ``.pth``, ``.bin``, up to 64 GiB, read with ``weights_only=True``), or a ``state_dict()``.
        public: Hyperparameters that do not depend on the records.
        assume: Open channels or assumptions that you assume.
        accept: Rules whose cautions you accept, and ``not-replayed``.
        select: The only rules to evaluate; all by default.
        ignore: Rules that are not evaluated.
        declare: A YAML file with facts for statements that no recording shows: the keys ``owner``, ``contact``,
            ``system``, ``description``, ``deployment`` and ``data.collection`` of a spec.

    Returns:
        A summary: ``proved``, ``epsilon``, ``cautions`` and ``passed``. Its ``result`` is the :class:`Result`, as
        reports receive it: ``result.audits[0].conformance`` says whether the run deviates.

    Raises:
        UsageError: The folder or an argument is invalid.
        SpecError: The file of ``declare`` has errors.
        NothingToRunError: No step was recorded.
    """
    claim = RunClaim(
        delta=delta,
        epsilon=epsilon,
        group_sizes=tuple(dict.fromkeys([*(group_size if isinstance(group_size, list | tuple) else [group_size]), 1])),
        adjacency=adjacency,
        public=tuple(public),
        assume=tuple(assume),
        accept=tuple(accept),
        select=tuple(select),
        ignore=tuple(ignore),
    )
    claim.require_valid()
    released = Path(model) if isinstance(model, str | PathLike) else model
    return CheckedRun(
        result=check_run(Path(run), claim, model=released, declare=None if declare is None else Path(declare))
    )
