"""All tests of a run: by its probes, and on the batches, the accountant and the divisor of its steps."""

from collections.abc import Iterator, Sequence

import numpy as np

from dpspec.contract import Phase
from dpspec_recording.judge import joined_checks
from dpspec_recording.judge.recorded_run import Array, RecordedRun
from dpspec_recording.outcomes.faults import Fault, RunTest
from dpspec_recording.outcomes.outcome import run_tests

FILLED = Fault(
    name="filled-batches",
    assumption="sampling",
    title="empty batches that rand_on_empty replaced by a random row",
    observed="reported",
    advice=(
        "Leave rand_on_empty out of make_private: Opacus then steps with noise alone. If a record is drawn "
        "alone, the sum without it has the random row in its place, and moves by two clip norms."
    ),
)
UNSCORED = Fault(
    name="unscored-canaries",
    assumption="canaries",
    title="inserted canaries without a score",
    observed="reported",
    advice="Call run.score after the block, in the training script, and keep canaries.npz in the folder.",
)
DIVISOR = Fault(
    name="other-divisor",
    assumption="data-independent-hyperparameters",
    title="divisor of the gradient",
    observed="reported",
    advice=(
        "The optimizer's gradient is not the noisy sum over the declared divisor: leave scale_grad "
        "unchanged, and clip or scale the noisy gradient in the inner optimizer."
    ),
)
ORDERED = Fault(
    name="assumed-poisson",
    assumption="sampling",
    title="assumed Poisson sampling, although the loader's batches are",
    observed="reported",
    advice="Iterate over the loader of make_private, made with poisson_sampling=True (its default).",
)
UNSEEN = Fault(
    name="unobserved-batch",
    assumption="sampling",
    title="steps without an observed batch",
    observed="reported",
    advice=(
        "Iterate the loader that make_private returned, instead of the original DataLoader, and give this "
        "loader to dpspec.record: batches of another loader have no known sampling rate. A custom loop "
        "reports each batch."
    ),
)
SEVERAL_BATCHES = Fault(
    name="several-batches",
    assumption="sampling",
    title="steps with several drawn batches",
    observed="reported",
    advice=("Skipping drawn batches changes the sampling distribution; joining batches changes the sampling rate."),
)
COUNTED_STEPS = Fault(
    name="accountant-steps",
    assumption="accounting",
    title="steps counted by the accountant",
    observed="reported",
    advice=(
        "Let the accountant count each update: keep the step hook of make_private, change nothing in its "
        "history, and use one engine for the optimizer and for get_epsilon."
    ),
)
COUNTED_NOISE = Fault(
    name="accountant-noise",
    assumption="accounting",
    title="noise multiplier of the accountant",
    observed="reported",
    advice=(
        "The accountant counts another noise multiplier than the optimizer used: give both the same one, "
        "and change it by a scheduler of Opacus only."
    ),
)
COUNTED_RATE = Fault(
    name="accountant-rate",
    assumption="accounting",
    title="sampling rate of the accountant",
    observed="reported",
    advice=(
        "The accountant counts another sampling rate than the loader drew with: take both from one call of "
        "make_private, and change neither."
    ),
)


def _declared(name: str, assumption: str, quantity: str) -> Fault:
    """Another quantity than the phases of the spec declare."""
    return Fault(
        name=name,
        assumption=assumption,
        title=f"{quantity} that the spec declares",
        observed="reported",
        advice=f"Train with the {quantity} of the spec, or declare the executed one.",
    )


DECLARED_STEPS = _declared("declared-steps", "steps", "updates")
DECLARED_NOISE = _declared("declared-noise", "noise-scale", "noise multiplier")
DECLARED_RATE = _declared("declared-rate", "sampling", "sampling rate")
DECLARED_CLIP = _declared("declared-clip-norm", "clipping", "clip norm")
DECLARED_RECORDS = _declared("declared-records", "sampling", "records")


def own_checks(run: RecordedRun) -> Iterator[RunTest]:
    """All checks of a run with one step or more."""
    yield from run_tests(run.all_outcomes)
    yield from _batches(run)
    yield from _accountant(run)
    yield from _divided(run)
    if run.header.canaries and run.end is not None:
        scored = run.scored is not None and run.folder.has_canaries
        missing = 0 if scored else run.header.canaries
        yield UNSCORED.none_found(missing, "", None)
    yield from joined_checks.rank_checks(run)
    yield from joined_checks.resume_checks(run)


def _batches(run: RecordedRun) -> Iterator[RunTest]:
    header = run.header
    assumed = header.accountant != "" or bool(np.isfinite(run["rate"]).any())
    if not header.is_poisson and header.scheme != "none" and assumed:
        yield ORDERED.compared(False, 1, 0, "scheme", title=f"{ORDERED.title} {header.scheme}")
        return
    if header.is_poisson or np.isfinite(run["rate"]).any():
        unseen = run.rates.count(None)
        yield UNSEEN.none_found(unseen, "every step has a batch")
    if run.options.fills_empty:
        yield FILLED.none_found(int(run.filled.sum()), f"of {run.steps} batches", None)
    if header.is_poisson and np.isfinite(run["batches"]).any():
        several = int((np.nan_to_num(run["batches"], nan=1.0) != 1).sum())
        yield SEVERAL_BATCHES.none_found(several, "one batch a step")


def _accountant(run: RecordedRun) -> Iterator[RunTest]:
    if not run.header.accountant:
        return
    counted = run["told_steps"] - run.header.told_before
    behind = int((counted != np.arange(1, run.steps + 1)).sum())
    last = float(counted[-1]) if np.isfinite(counted[-1]) else 0.0
    yield COUNTED_STEPS.compared(behind == 0, run.steps, last, "steps")
    noise, rates = run["noise_multiplier"], _floats(run.rates)
    yield _equal(COUNTED_NOISE, noise, run["told_noise"])
    if (sampled := np.isfinite(rates)).any():
        rates, reported = (np.where(sampled, values, 0.0) for values in (rates, run["told_rate"]))
        yield _equal(COUNTED_RATE, rates, reported)


def _floats(values: Sequence[float | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values])


def _equal(fault: Fault, declared: Array, executed: Array) -> RunTest:
    """The test that values of steps are equal; it has the values of the first step with a difference."""
    wrong = ~np.isclose(executed, declared, rtol=1e-9, atol=0.0)
    step = int(np.argmax(wrong))
    expected, value = (float(np.nan_to_num(values[step], nan=0.0)) for values in (declared, executed))
    note = f"first at step {step + 1}" if wrong.any() else "at all steps"
    return fault.compared(not wrong.any(), expected, value, note)


def _divided(run: RecordedRun) -> Iterator[RunTest]:
    declared, measured = run["divisor"], run["measured_divisor"]
    both = np.isfinite(declared) & np.isfinite(measured)
    if both.any():
        note, precision = "the configured divisor", run.divisor_precision
        with np.errstate(over="ignore"):  # an edited divisor may be as small as any number
            difference = np.abs(measured[both] / declared[both] - 1.0)
        most_different, mapped = int(np.argmax(difference)), int((difference > precision).sum())
        right = mapped == 0 or run.has_mapped_factor
        if mapped and right:
            note = f"{note} times a factor of the noisy gradient alone, {mapped} steps"
        values = float(declared[both][most_different]), float(measured[both][most_different])
        yield DIVISOR.compared(right, *values, note, precision)


def declared_tests(run: RecordedRun, phases: Sequence[Phase], records: int) -> Iterator[RunTest]:
    """Compare steps, noise, rate, clip norm and number of records with the phases; none without phases."""
    if not phases:
        return
    steps = sum(phase.steps for phase in phases)
    yield DECLARED_STEPS.compared(steps == run.steps, steps, run.steps, "recorded")
    compared: tuple[tuple[Fault, list[float], Sequence[float | None]], ...] = (
        (DECLARED_NOISE, [phase.noise_multiplier for phase in phases], run.noise_multipliers),
        (DECLARED_RATE, [phase.rate(records) for phase in phases], run.rates),
        (DECLARED_CLIP, [phase.clip_norm for phase in phases], run["clip_norm"].tolist()),
    )
    for fault, values, executed in compared:
        declared = np.repeat(values, [min(phase.steps, run.steps) for phase in phases])[: run.steps]
        yield _equal(fault, declared, _floats(executed)[: len(declared)])
    if run.header.records is not None:
        right = run.header.records == records
        yield DECLARED_RECORDS.compared(right, records, run.header.records, "of the loader's data")
