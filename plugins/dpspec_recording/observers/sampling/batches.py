"""The batches that a sampler draws, and that steps use.

The mistake: the accountant counts Poisson samples, and the loop iterates over other batches, or chooses among them::

    for x, y in DataLoader(data, batch_size=64, shuffle=True):   # the loader of make_private is not used
        ...
    for x, y in loader:
        if criterion(model(x), y) < limit:                       # a record decides whether its batch is used
            continue
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dpspec.stats.conformance import batch_checks
from dpspec.stats.conformance.run_checks import FURTHER_NORMS
from dpspec_recording.folder.events import UNSEEN
from dpspec_recording.folder.merging import Count, join_by
from dpspec_recording.notices import notice
from dpspec_recording.observers.loop_arguments import omitted_arguments
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.conditions import TEXTS, stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Statement, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun
    from dpspec_recording.pending_step import PendingStep


@dataclass(frozen=True, kw_only=True)
class BatchFacts:
    """Numbers of drawn batches that no step used, and of times that batches were passed over before later ones."""

    # ranks draw for the same steps, so the one that passes over most batches counts
    unused: Count = field(metadata=join_by(max, sum))
    passed_over: Count = field(metadata=join_by(max, sum))


#: The test that a violated exact test of the batches explains.
OF_RATE = (batch_checks.rate.name,)

ORDERED = Fault(
    name="assumed-poisson",
    condition="sampling",
    title="assumed Poisson sampling, although the loader's batches are",
    observed="reported",
    source="https://github.com/lxuechen/private-transformers/issues/7",
    advice="Iterate over the loader of make_private, made with poisson_sampling=True (its default).",
    explains=OF_RATE,
)
UNOBSERVED = Fault(
    name="unobserved-batch",
    condition="sampling",
    title="steps without an observed batch",
    observed="reported",
    source="package DPTrainer 0.1.2",
    advice=(
        "Iterate the loader that make_private returned, instead of the original DataLoader, and give this "
        "loader to dpspec.record: batches of another loader have no known sampling rate. Make one step with "
        "each batch: a second one has no sampling. A custom loop reports each batch."
    ),
    explains=OF_RATE,
)
#: Advice on unobserved batches of a custom loop without a loader.
_UNREPORTED = (
    "Report the batch of each step by run.sampled, also an empty one, before run.stepped: a step without a report has "
    "no sampling."
)
FILLED = Fault(
    name="filled-batches",
    condition="sampling",
    title="empty batches that rand_on_empty replaced by a random row",
    observed="reported",
    source="https://github.com/meta-pytorch/opacus/pull/806",
    advice=(
        "Leave rand_on_empty out of make_private: Opacus then steps with noise alone. If a record is drawn "
        "alone, the sum without it has the random row in its place, and moves by two clip norms."
    ),
    explains=(FURTHER_NORMS, *OF_RATE),
)
SEVERAL = Fault(
    name="several-batches",
    condition="sampling",
    title="steps with several drawn batches",
    observed="reported",
    source="https://github.com/google-deepmind/jax_privacy/pull/271",
    advice=(
        "Step with every drawn batch by itself, also with a small one. Skipping drawn batches changes the sampling "
        "distribution; joining batches changes the sampling rate."
    ),
    explains=OF_RATE,
)


class Batches(Observer[BatchFacts]):
    """Counts the drawn batches that steps leave."""

    name, kind = "batches", BatchFacts | None

    def start(self, training: Training) -> None:
        """Keep the observer of the sampler."""
        self._samples, self._header, self._used = training.samples, training.header, 0

    def after_step(self, step: PendingStep) -> None:
        """Count the batches of the step, which a loop may report itself; and warn at the first step."""
        self._used += step.batches % UNSEEN
        scheme = self._header.scheme
        if step.number == 1 and self._header.accountant and scheme not in ("poisson", "none", "unknown"):
            notice(
                f"dpspec.record: the loader's batches are {scheme}, and the accountant computes with Poisson samples: "
                "iterate the loader that make_private returned, with poisson_sampling=True",
                UserWarning,
            )

    def facts(self) -> BatchFacts | None:
        """None without a loader whose sampler can be observed."""
        samples = self._samples
        if samples is None:
            return None
        return BatchFacts(unused=max(0, samples.drawn - self._used), passed_over=samples.passed_over)

    @staticmethod
    def judge(facts: BatchFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Each step uses one Poisson sample, and each sample is used."""
        header = run.header
        is_sampled = header.is_poisson or bool(np.isfinite(run["rate"]).any())
        yield from _tests(run, is_sampled=is_sampled)
        if is_sampled and not _undeclared(run):
            yield _sampling(run)
        elif omitted_arguments(run, "rate"):
            omitted = omitted_arguments(run, "rate", "records")
            yield doubted("sampling", f", but the batches have no declared rate: {omitted}")
        if is_sampled or header.in_epochs:
            yield from _unused(facts, run)
        if header.in_epochs:
            yield stated("order")


def _tests(run: JudgedRun, *, is_sampled: bool) -> Iterator[Statement]:
    header = run.header
    is_assumed = header.accountant != "" or bool(np.isfinite(run["rate"]).any())
    if not header.is_poisson and header.scheme != "none" and is_assumed:
        yield ORDERED.compared(False, 1, 0, "scheme", title=f"{ORDERED.title} {header.scheme}")
        return
    if is_sampled:
        advice = _UNREPORTED if header.is_reported and header.no_loader else None
        unobserved = run.rates.count(None) - _undeclared(run)
        yield UNOBSERVED.none_found(unobserved, "every step has a batch", advice=advice)
    if run.options.fills_empty:
        yield FILLED.none_found(int(run.filled.sum()), f"of {run.steps} batches", None)
    if header.is_poisson and np.isfinite(run["batches"]).any():
        several = int((np.nan_to_num(run["batches"], nan=1.0) != 1).sum())
        yield SEVERAL.none_found(several, "one batch a step")


def _undeclared(run: JudgedRun) -> int:
    """The number of steps whose batch a loop reports before it declares a rate."""
    if not omitted_arguments(run, "rate"):
        return 0
    return int((np.isfinite(run["drawn"]) & np.isnan(run["rate"])).sum())


def _sampling(run: JudgedRun) -> Statement:
    internal = run.internal
    sampling_observed = internal is not None and internal.sampling is not None
    missing = ", but internal.log (the drawn records) is missing" if internal is None else ", but is not recorded"
    if omitted := omitted_arguments(run, "records"):
        missing = f", but batches were not compared with the dataset, because {omitted}"
    return stated("sampling", status="reported") if sampling_observed else doubted("sampling", missing)


def _unused(facts: BatchFacts | None, run: JudgedRun) -> Iterator[Statement]:
    if facts is None or not facts.unused or not np.isfinite(run["batches"]).any():
        return
    unused_text = "one batch was" if facts.unused == 1 else f"{facts.unused} batches were"
    text = f"{unused_text} drawn and not used: {TEXTS['unused-batches']}"
    # An end of each epoch, or an evaluation after it, skips batches before few steps.
    often = facts.passed_over > max(3, run.steps // 4)
    if often:
        yield doubted("unused-batches", text=f"{text}, but batches were skipped so often that it may be a selection")
    else:
        yield stated("unused-batches", text=text)
