"""Audits histograms released with Laplace noise: a mechanism without training, and two backends, outside dpspec."""

from collections.abc import Iterable
from importlib.resources import files
from typing import Any, ClassVar

import dpspec.contract as dps
from dpspec import kit

DPSPEC_API = 1

#: Backends that release histograms; other backends train models.
BACKENDS = {
    "laplace-histogram": ("Releases", "Releases histograms with the declared noise"),
    "careless-histogram": (
        "CarelessReleases",
        "Releases histograms with noise for half of what a replaced record changes",
    ),
}


class LaplaceHistogram(kit.AttackedMechanism):
    """The number of records of each class, with Laplace noise."""

    kind = "laplace-histogram"
    schema: ClassVar = {
        "scale": kit.number("Scale of the Laplace noise on every count; its mean absolute value.", least=1e-3, most=1e6)
    }
    scope = dps.Scope(adjacency="replace-one")
    assumptions = (dps.Assumption(name="noise-scale", status="declared", text="each count has noise of this scale"),)
    example = files(__name__).joinpath("example.yaml").read_text(encoding="utf-8")
    source = "Laplace mechanism, Dwork, McSherry, Nissim and Smith 2006"
    attack = "log-likelihood ratio of the release"
    noise = "laplace"
    seconds = 6e-5

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Say what the schema cannot: which backends release histograms."""
        yield from super().check(spec, facts)
        if spec.training.kind not in BACKENDS:
            yield dps.Diagnostic(
                code="unsupported",
                message=f"backend {spec.training.kind!r} trains models; a histogram is released by 'laplace-histogram'",
                path=("training", "backend"),
                help="write training: {backend: laplace-histogram}",
            )

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        """One number for each class."""
        return facts.classes

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> float:
        """2k / scale, at every delta: k replaced records change the counts by 2k in l1."""
        return 2.0 * group_size / float(spec.mechanism["scale"])

    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: Any
    ) -> kit.Releases:
        """Let the backend release a histogram for each coin; 1 replaces a group of class 0 by class 1."""
        import numpy as np

        from dpspec_laplace_histogram.backend import released

        scale, absent = inputs["mechanism"]["scale"], context.data.train_y
        present = absent.copy()
        present[np.flatnonzero(absent == 0)[:group_size]] = 1
        truth = [np.bincount(labels, minlength=context.facts.classes) for labels in (absent, present)]
        scores, noise = [], []
        for number, coin in enumerate(coins):
            if context.cancelled():
                raise dps.Cancelled
            seed = context.seed(index, str(group_size), str(number))
            counts = released(context.trainer, (absent, present)[coin], context.facts.classes, scale, seed)
            scores.append(float((abs(counts - truth[0]) - abs(counts - truth[1])).sum()) / scale)
            noise.append((counts - truth[coin]) / scale)
        return kit.Releases(scores=np.array(scores), noise=np.concatenate(noise))


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    """The mechanism."""
    yield LaplaceHistogram.offer()


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    """Who releases: the right way, and a wrong one for the control."""
    for kind, (trainer, summary) in BACKENDS.items():
        yield dps.Backend(
            kind=kind,
            summary=summary,
            schema={"type": "object", "properties": {}, "additionalProperties": False},
            capabilities=frozenset({"iterates"}),
            trainer=f"dpspec_laplace_histogram.backend:{trainer}",
        )
