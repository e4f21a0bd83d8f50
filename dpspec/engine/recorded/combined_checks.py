"""One check for each assumption of a recorded run, combined from all tests of this assumption.

A violated exact test rejects. Otherwise p = min(1, m min p) for the m statistical tests (Bonferroni).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dpspec.contract import Check
from dpspec.stats.conformance.measurement import LEVEL

#: The kinds of checks of a recording: by name, what their tests compare.
KINDS: Mapping[str, str] = {
    "steps": "numbers of batches, noise vectors and clipped norms; the steps of all ranks; the spec's number of steps",
    "sampling": "rate, rate at each step, variance of batch sizes, inclusions per record, and records in common with "
    "earlier batches; exactly: repeated records, steps without a batch or with several, the scheme of the loader, "
    "shares and seeds of ranks, rate and records of the spec",
    "clipping": "largest clipped norm, numbers of norms and of drawn records, length of each sum, changes of sums "
    "between clipping and step; the spec's clip norm",
    "unmixed-batches": "moves of the clipped sum, and of other records' outputs and gradients, in replayed steps",
    "noise-scale": "squared noise over all steps and at each step, noise of adaptive counts; exactly: updates without "
    "noise, ranks that add noise, the spec's noise multiplier",
    "per-layer-noise": "squared noise of the quietest layer over all steps and at a step, and of the quietest "
    "coordinate",
    "independent-noise": "products of the noise of two steps, of all steps at one distance, along all earlier steps, "
    "along the sums, and of two ranks; values that repeat within a step; exactly: equal seeds of noise and batches",
    "noise-law": "shares of values in intervals, in total and at each step; trailing zero bits",
    "secret-randomness": "seeds of an unseeded torch.Generator()",
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

#: The kinds with statistical tests. All tests of the others compare values.
_STATISTICAL = frozenset({"sampling", "noise-scale", "per-layer-noise", "independent-noise", "noise-law"})

#: The end of an exact test's name, the separator of names, and words in the notes of tests of one step. Their limits
#: are above those of all steps, and do not count.
_EXACT, SEPARATOR, _SINGLE = ", exact", "; ", "each step"

#: The maximum number of rejected tests whose values a check lists.
_MOST = 4


def corrected(tests: Sequence[Check]) -> tuple[Check, ...]:
    """Multiply the p-value of each statistical test by the number m of those of its assumption.

    A detection limit at level L grows at most in proportion to ln(1 / L), which bounds the limit at 1e-6 / m.
    """
    statistical = [_is_statistical(test) for test in tests]
    names = [test.assumption for test, counted in zip(tests, statistical, strict=True) if counted]

    def of_several(test: Check) -> Check:
        number = names.count(test.assumption)
        factor = 1.0 + math.log(number) / -math.log(LEVEL)
        limit = None if test.detectable is None else factor * test.detectable
        return replace(test, p_value=min(1.0, number * test.p_value), detectable=limit)

    return tuple(of_several(test) if counted else test for test, counted in zip(tests, statistical, strict=True))


def combined(tests: Iterable[Check]) -> tuple[Check, ...]:
    """The checks of :func:`corrected` tests, one for each assumption.

    A check has the values of its most surprising test, and names all rejected ones. Its ``detectable`` is the largest
    limit of those tests that compare all steps.
    """
    by_name: dict[str, list[Check]] = {}
    for test in tests:
        by_name.setdefault(test.assumption, []).append(test)
    return tuple(_combined(same) if len(same) > 1 else same[0] for same in by_name.values())


def _is_statistical(test: Check) -> bool:
    return test.assumption in _STATISTICAL and not test.test.endswith(_EXACT)


def _combined(tests: Sequence[Check]) -> Check:
    by_surprise = sorted(tests, key=lambda test: (test.p_value, test.observed != "measured"))
    bad = [test for test in by_surprise if test.p_value <= LEVEL]
    worst = by_surprise[0]
    names = dict.fromkeys(test.test.removesuffix(_EXACT) for test in bad or [worst])
    exact = all(test.test.endswith(_EXACT) for test in tests)
    limits = [test.detectable for test in tests if test.detectable is not None and _SINGLE not in test.note]
    further = [
        f"also {test.test.removesuffix(_EXACT)}: {test.observed} {test.measured:.4g}"
        for test in bad[1:]
        if test.measured is not None and test.privacy == "public"
    ]
    passed = f"{len(tests) - len(bad)} of {len(tests)} tests pass"
    return replace(
        worst,
        test=f"{SEPARATOR.join(names)}{_EXACT if exact else ''}",
        detectable=max(limits, default=None),
        note="; ".join(filter(None, [passed, worst.note, *further[:_MOST]])),
    )
