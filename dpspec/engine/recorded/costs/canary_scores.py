"""The coins and scores of a run's canaries, read from its folder and held against what was fixed before training.

A stranger may have written the file. It is read only where its digest is the one that follows the end of the recording.
Its coins must be those that follow from the bytes whose digest stands in the header, written before the first step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from dpspec.contract import DataError
from dpspec.data.scored.columns import Wanted, read_columns
from dpspec.engine.recorded.recorded_run import Array, RecordedRun
from dpspec.errors import RecordingError
from dpspec.recording.folder.canaries import BYTES, CoinSource
from dpspec.recording.folder.header import MOST_CANARIES
from dpspec.recording.folder.run_folder import CANARIES, STEPS
from dpspec.regular_files import NotRegularError, read_regular

#: No file of scores is larger: a byte and a float64 for each canary, and what an archive adds.
_MOST_BYTES = 9 * MOST_CANARIES + 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class CanaryScores:
    """coins (m,): int8, 1 for a canary that was in. scores (m,): float64 without NaN, higher for "in"."""

    coins: Array
    scores: Array


def read_canaries(run: RecordedRun) -> CanaryScores | None:
    """What was scored; None where nothing was, or the file was kept back.

    Raises ``RecordingError`` that names the file where it is not the one that was written.
    """
    path, scored, header = run.folder.path / CANARIES, run.scored, run.header
    if scored is None:
        if path.exists():
            raise RecordingError(f"{path}: {STEPS} does not hold its digest: scoring was cut short; remove the file")
        return None
    if scored.canaries != header.canaries or not header.canaries:
        raise RecordingError(
            f"{path.parent / STEPS}: says that {scored.canaries} canaries were scored, of {header.canaries} planted"
        )
    if not path.exists():
        return None
    try:
        content = read_regular(path, _MOST_BYTES)
    except NotRegularError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None
    except (OSError, ValueError) as error:
        raise RecordingError(f"{path}: cannot be read: {error}") from None
    if hashlib.sha256(content).hexdigest() != scored.digest:
        raise RecordingError(f"{path}: its digest is not the one that {STEPS} holds: it was changed")
    try:
        read = read_columns(path, content, [Wanted(key=name, name=name) for name in ("coin", "score")], MOST_CANARIES)
        secret = read_columns(path, content, [Wanted(key="secret", name="secret")], BYTES).values["secret"]
    except DataError as error:
        raise RecordingError(str(error)) from None
    coins, scores = read.values["coin"], read.values["score"]
    if read.rows != header.canaries:
        raise RecordingError(f"{path}: has {read.rows} canaries, and {header.canaries} were planted")
    if np.isnan(scores).any():
        raise RecordingError(f"{path}: a score is not a number, which no recorder writes")
    _require_coins(run, coins, secret, str(path))
    return CanaryScores(coins=coins.astype(np.int8), scores=scores)


def _require_coins(run: RecordedRun, coins: Array, secret: Array, name: str) -> None:
    """Raise ``RecordingError`` where these are not the coins that were fixed before training."""
    header = run.header
    if len(secret) != BYTES or not np.isin(secret, np.arange(256)).all():
        raise RecordingError(f"{name}: secret must be {BYTES} bytes")
    source = CoinSource(secret.astype(np.uint8).tobytes(), header.canary_seed)
    given = header.canary_seed is not None and CoinSource.of(header.canary_seed) != source
    if source.commitment != header.commitment or given:
        raise RecordingError(f"{name}: its coins follow from other bytes than those that were fixed before training")
    if not np.array_equal(coins, source.coins(header.canaries)):
        raise RecordingError(f"{name}: its coins are not those that were thrown before training")
    left_out = int((coins == 0).sum())
    if left_out != header.left_out:
        raise RecordingError(f"{name}: {left_out} canaries were left out, and the header says {header.left_out}")
