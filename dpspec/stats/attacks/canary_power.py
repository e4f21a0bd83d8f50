"""What canaries can show in one run: maxima, and values that were measured on a small dataset."""

from dpspec.stats.attacks import guess_counts

#: Certified epsilon of the measured training, at delta 1e-5, and its number of canaries.
MEASURED_EPSILON, MEASURED_CANARIES = 2.06, 500

#: By kind of canary: the median and the largest lower bound of five seeds, from the final model and from all iterates
#: (``docs/explanation/attack-power.md``).
MEASURED: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "mislabelled": ((0.0, 0.01), (0.13, 0.22)),
    "noise": ((0.0, 0.03), (0.35, 1.20)),
    "duplicate": ((0.0, 0.0), (0.0, 0.26)),
    "least-variance": ((0.19, 0.24), (0.43, 0.49)),
    "proxy-crafted": ((0.19, 0.35), (0.33, 1.52)),
    "random-direction": ((0.0, 0.07), (0.47, 0.56)),
    "gradients": ((0.07, 0.18), (0.47, 0.68)),
}


def largest_epsilon(canaries: int, delta: float, confidence: float) -> float:
    """The lower bound if all guesses are right: no attack on this number of canaries shows more."""
    rungs = guess_counts.blind(canaries)
    return guess_counts.largest(canaries, [sum(rung) for rung in rungs], delta, confidence)


def measured(kind: str, *, all_iterates: bool) -> str:
    """What canaries of this kind and the strongest ones showed in the measured training, if they were measured."""
    if kind not in MEASURED:
        return f"{kind} canaries were not measured"
    median, most = MEASURED[kind][all_iterates]
    view = "all iterates" if all_iterates else "the final model"
    text = (
        f"measured on digits with {MEASURED_CANARIES} {kind} canaries and {view}: a median of {median:.2f} of a proved "
        f"epsilon of {MEASURED_EPSILON:.2f}, at most {most:.2f}"
    )
    strongest = max(MEASURED, key=lambda name: MEASURED[name][all_iterates][0])
    largest_median = MEASURED[strongest][all_iterates][0]
    return text if largest_median <= median else f"{text}; {strongest} canaries: {largest_median:.2f}"
