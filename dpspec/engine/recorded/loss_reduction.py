"""Whether the loss of a run with Opacus is a mean or a sum over the batch, as its ``loss_reduction`` says."""

import numpy as np

from dpspec.contract import Assumption
from dpspec.engine.recorded.channels import stated
from dpspec.engine.recorded.recorded_run import RecordedRun
from dpspec.text import several

#: A slope shows a wrong reduction if it is this close to -1 or 1, or three standard errors more, and this many
#: standard errors from 0. It excludes one if it is as many standard errors from it.
_CLOSE, _ERRORS = 0.25, 5.0

#: Minimum number of pairs of steps of a regression.
_PAIRS = 8

#: Difference of powers of the batch size that rounding explains.
_SAME_POWER = 0.02


def loss_reduction(run: RecordedRun) -> Assumption | None:
    """The assumption ``loss-reduction``; None if the recording shows it.

    It is unchecked if replays at another batch size (``docs/explanation/replay.md``) measure another reduction, or
    if the slope of the lengths of gradients by the batch size shows one, and declared if neither decides.
    """
    end, header = run.end, run.header
    if end is None or header.source != "opacus":
        return None
    expected = -1.0 if header.reduction == "mean" else 0.0
    ghost = header.clipping == "ghost"  # Opacus reduces the losses itself: only a further division can be wrong
    if end.sizes is not None and not ghost:
        steps, low, high, _ = end.sizes
        power = low if expected - low > high - expected else high
        if abs(power - expected) <= _SAME_POWER:
            return None
        replays = several(steps, "replay")
        observed = f"{replays} at another batch size b found gradients of the loss that change as b^{power:.2f}"
        return _wrong(header.reduction, power, observed)
    probe, sizes = end.probe, run["rows"][np.isfinite(run["rows"])]
    if len(np.unique(sizes)) < 2 or (probe is not None and not ghost and 1.0 <= probe[0] == probe[4]):
        return None
    pairs, slope, error = end.scaling or (0, 0.0, np.inf)
    if pairs >= _PAIRS and abs(slope) + _ERRORS * error < 1.0:
        return None
    if pairs >= _PAIRS and abs(abs(slope) - 1.0) <= _CLOSE + 3.0 * error and abs(slope) >= _ERRORS * error:
        observed = f"per-sample gradients change with the batch size b as b^{slope:.2f} (+- {error:.2f})"
        return _wrong(header.reduction, slope + expected, observed)
    if ghost:
        return None
    text = f"; no step was replayed at another batch size, and the sizes of {pairs} pairs of steps do not show it"
    return stated("loss-reduction", text)


def _wrong(declared: str, power: float, observed: str) -> Assumption:
    reduction = {-1: "mean", 0: "sum"}.get(round(power))
    kind = f"a {reduction} over the batch" if reduction else "neither a mean nor a sum"
    fix = f', or make_private loss_reduction="{reduction}"' if reduction else ""
    text = f', but {observed}, as if the loss were {kind}, and loss_reduction is "{declared}": give the loss the '
    return stated("loss-reduction", f'{text}reduction "{declared}"{fix}', "unchecked")
