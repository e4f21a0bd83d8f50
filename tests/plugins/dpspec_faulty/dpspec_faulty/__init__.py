"""Backends that are broken on purpose, registered as any third party's would be."""

from collections.abc import Iterable, Mapping

import dpspec.contract as dps

DPSPEC_API = 1

#: Every fault, in words.
FAULTS: Mapping[str, str] = {
    "no-noise": "no noise is added",
    "tenth-noise": "the noise has a tenth of the declared standard deviation",
    "wrong-batch-size": "the noise is divided by the batch of all four workers, the gradients by that of one",
    "noise-without-clip-norm": "the noise has standard deviation noise_multiplier, whatever the clip norm",
    "noise-reused": "the noise is drawn once and added at each step",
    "noise-seeded-alike": "the noise's generator has the same seed in every run",
    "layers-seeded-alike": "each step draws the noise of every layer from a generator that is seeded alike",
    "first-step-without-noise": "the first step adds no noise",
    "last-step-without-noise": "the last step adds no noise",
    "alternating-noise": "steps take turns with 0.25 and 1.39 times the noise, whose variance is right on average",
    "tenth-step-tenth-noise": "every tenth step adds a tenth of the noise, and the others a twentieth more",
    "clip-after-averaging": "the mean gradient of the batch is clipped, the records' are not",
    "clip-per-layer": "each of L layers is clipped to the clip norm, so that a record weighs up to sqrt(L) times that",
    "layer-unclipped": "the last layer is left out of clipping",
    "clip-accumulated-sum": "gradients are accumulated in pieces of eight records, and each piece's sum is clipped",
    "augmented-copies": "each record contributes four augmented copies, each clipped on its own",
    "private-normalisation": "features are standardised by the mean and deviation of the training records",
    "large-batch-once": "one step in the middle draws about 78 records more",
    "cap-forgotten": "where more than max_batch records enter all of them are kept",
    "shuffled": "batches are pieces of a shuffled epoch",
    "same-steps": "every epoch allocates records to the same steps",
    "counts-without-noise": "the counts that choose the clip norms of adaptive clipping have no noise",
    "noise-not-raised": "the gradients have the noise multiplier that pays for them and the counts together",
    "last-batch-dropped": "batches are cut into pieces of sixteen, and the last one is dropped unless it is full",
}

_FAULT = {
    "enum": ["none", *FAULTS],
    "default": "none",
    "description": f"What is broken. none: nothing. {'. '.join(f'{name}: {text}' for name, text in FAULTS.items())}.",
}


def trainer_of(fault: str) -> str:
    """The name of the trainer with one fault: ``NoNoiseTrainer`` for ``no-noise``."""
    return "".join(part.capitalize() for part in fault.split("-")) + "Trainer"


def _backend(kind: str, summary: str, properties: Mapping[str, dps.Json], trainer: str) -> dps.Backend:
    return dps.Backend(
        kind=kind,
        summary=summary,
        schema={"type": "object", "properties": dict(properties), "additionalProperties": False},
        capabilities=dps.CAPABILITIES,
        trainer=f"dpspec_faulty.backend:{trainer}",
        constants=dps.Assumption(
            name="data-independent-hyperparameters",
            status="by-construction",
            text="divisor, rate and clip norm are the job's",
        ),
    )


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    """One backend per fault, which takes the options of ``native``, and one whose own option chooses the fault."""
    yield _backend("faulty", "native, broken as `fault` says", {"fault": _FAULT}, "FaultyTrainer")
    for name, text in FAULTS.items():
        yield _backend(f"faulty-{name}", f"native, broken: {text}", {}, trainer_of(name))


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    """A number with noise in floats, whose bound is the one of real numbers."""
    from dpspec_faulty.sampler import mechanisms

    return mechanisms()
