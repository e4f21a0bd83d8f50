"""The checks of conformance and the channels of recordings."""

from __future__ import annotations

from dpspec.contract.sampling import SCHEMES
from dpspec.sampling import scheme_named
from dpspec.stats.conformance.table import TABLE, Row
from dpspec_recording.judge.channels import KINDS
from dpspec_recording.outcomes.conditions import TESTED
from generator.markdown import cell, tidy

#: The checks of a recording: by name, what their tests compare.
COMPARED = {
    "steps": "numbers of batches, noise vectors and clipped norms; the steps of all ranks; the spec's number of steps",
    "sampling": "rate, rate at each step, variance of batch sizes, inclusions per record, and records in common with "
    "earlier batches; exactly: repeated records, steps without a batch, with several or with a random row, the scheme "
    "of the loader, shares and seeds of ranks, rate and records of the spec",
    "clipping": "largest clipped norm, norms of clipping and of the noise, numbers of norms and of drawn records, "
    "length of each sum, changes of sums between clipping and step; the spec's clip norm",
    "unmixed-batches": "moves of the clipped sum, and of other records' outputs and gradients, in replayed steps",
    "noise-scale": "squared noise over all steps and at each step, noise of adaptive counts; exactly: updates without "
    "noise, ranks that add noise, the spec's noise multiplier",
    "per-layer-noise": "squared noise of the quietest layer over all steps and at a step, and of the quietest "
    "coordinate",
    "independent-noise": "products of the noise of two steps, of all steps at one distance, along all earlier steps, "
    "along the sums, and of two ranks; values that repeat within a step",
    "noise-law": "shares of values in intervals, in total and at each step; trailing zero bits; components of steps, "
    "rows and columns along earlier ones, and the volume that they span",
    "update": "number of updates, parameter changes outside the optimizer, gradients other than the noisy sum; equal "
    "gradients, sums and options of ranks",
    "update-rule": "updates recomputed by the optimizer of torch or optax",
    "gradient-parameters": "parameters at each forward pass and after the step before",
    "model-state": "buffers, frozen and new parameters, extra state",
    "data-independent-hyperparameters": "divisor of the gradient; clip norms of adaptive clipping",
    "accounting": "steps, noise multipliers and rates that the accountant counted, also of earlier parts",
    "canaries": "scores of all inserted canaries",
    "nothing-unseen": "lower bound by canaries, and the certified bound",
}


def page() -> str:
    """Every check, and every channel."""
    assert {*COMPARED} == {*TESTED}
    lines = [
        "# Checks\n",
        "The conformance checks of a run that dpspec trains ([explanation](../explanation/conformance.md)). Sampling "
        "schemes in brackets restrict a check to such phases.\n",
        *(_entry(row) for row in TABLE),
        "\n## Checks of a recording\n",
        "`dpspec check` makes at most one check for each assumption. It combines all tests of the assumption "
        "([explanation](../explanation/conformance.md#recorded-runs)).\n",
        *(f"- `{name}`: {cell(text)}." for name, text in COMPARED.items()),
        "\n## Channels of a recording\n",
        "The ways in which records can reach a released model, and the condition that excludes each.\n",
        *(f"- `{name}`: {cell(kind.text)}" for name, kind in KINDS.items()),
    ]
    return tidy("\n".join(lines))


def _entry(row: Row) -> str:
    names = [name for name in SCHEMES if row.name in scheme_named(name).checks]
    schemes = f" ({', '.join(names)})" if names else ""
    parts = {"Evidence": row.evidence, "Null": ": ".join(filter(None, (row.null, row.reason))), "Detects": row.detects}
    details = " ".join(f"*{name}*: {cell(text)}." for name, text in parts.items())
    return f"- `{row.assumption}`, {row.observed}: {cell(row.compares)}{schemes}. {details}"
