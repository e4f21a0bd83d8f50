"""How this plugin words what it finds: the assumptions behind a bound, and the shapes that its numbers come in."""

from __future__ import annotations

from typing import Final

import dpspec.contract as dps

SCOPE: Final = dps.Scope(direction="both", access="all-iterates", adversary="gradient")

#: What every bound takes for granted of DP-SGD.
BASE = (
    dps.Assumption(name="noise-scale", status="declared", text="noise of the declared law and scale in every step"),
    dps.Assumption(name="fresh-noise", status="declared", text="noise is independent across steps"),
    dps.Assumption(name="clipping", status="declared", text="every record's gradient is clipped to the clip norm"),
    dps.Assumption(
        name="sampling", status="declared", text="batches are drawn by the declared scheme, afresh each step"
    ),
    dps.Assumption(name="steps", status="declared", text="exactly the declared number of updates is made"),
    dps.Assumption(
        name="public-constants",
        status="declared",
        text="rate, divisor, learning rate, threshold and the first two models do not depend on rows",
    ),
)

#: What the amplification takes for granted besides.
MIXED = (
    dps.Assumption(
        name="mixing-weights",
        status="declared",
        text="every coordinate is mixed, by a fresh weight of its own, uniform on [0, 1]",
    ),
    dps.Assumption(
        name="gap", status="declared", text="the gap is at least the threshold in every coordinate and step"
    ),
    dps.Assumption(
        name="hidden-weights",
        status="declared",
        text="neither weights nor noisy gradients nor their seeds are released",
    ),
)

#: What a gradient embedding takes for granted besides.
SUBSPACE = dps.Assumption(
    name="public-subspace",
    status="declared",
    text="the subspace depends on public records and released models alone",
)


def one_hot(worst: float) -> dps.Assumption:
    """That no other gradient is worse than the one-hot one, which the paper asserts and proves nowhere."""
    return dps.Assumption(
        name="one-hot-worst",
        status="unchecked",
        text="the paper asserts without proof that the one-hot gradient is the worst. Looked at on 16 smaller shifts, "
        f"which is no proof: relative to it others reach {worst:.6f}",
    )


def epsilon_upper(
    delta: float,
    value: float,
    method: str,
    source: str,
    assumptions: tuple[dps.Assumption, ...] = BASE,
    lower: float | None = None,
) -> dps.Finding:
    """A bound on epsilon; ``lower`` says how tight its computation is."""
    return dps.Finding(
        quantity="epsilon",
        value=value,
        bound="upper",
        rigor="theorem",
        at=dps.FrozenMap({"delta": delta}),
        scope=SCOPE,
        method=method,
        source=source,
        assumptions=assumptions,
        lower=lower,
    )


def beside(
    quantity: str,
    value: float,
    method: str,
    source: str,
    *,
    delta: float | None = None,
    refuted: str = "",
    assumptions: tuple[dps.Assumption, ...] = (),
) -> dps.Finding:
    """A number that stands beside the bounds and decides nothing; ``refuted`` says why a printed formula is wrong."""
    return dps.Finding(
        quantity=quantity,
        value=value,
        bound="estimate",
        rigor="approximate",
        at=dps.FrozenMap({} if delta is None else {"delta": delta}),
        scope=SCOPE,
        method=method,
        source=source,
        assumptions=assumptions,
        printed=dps.Printed(refuted=True, reason=refuted) if refuted else None,
    )
