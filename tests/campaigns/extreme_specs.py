"""Bound specs with extreme numbers: ``python tests/campaigns/extreme_specs.py --count 1500``.

Takes a spec of each mechanism and scheme, and sets up to three of its numbers to a limit of the schema, a neighbor of
this limit, or a number between, log-uniform. A finding is an unexpected exception, a warning, more than 20 seconds of
processor time, an error without a location, or a false proof: an upper bound below the exact value of a single step.

The seed and the number determine a case: ``--seed 3 --only 17`` repeats and prints it.
"""

import argparse
import json
import math
import random
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import mpmath
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.extreme_pairs import exact_delta

from dpspec.accounting import Laplace, Mixture, Pair
from dpspec.contract import AuditResult
from dpspec.contract.catalog import Catalog
from dpspec.engine.running import runner
from dpspec.errors import SpecError
from dpspec.language.load import from_document
from dpspec.language.numeric_values import NumericKey, _keys
from dpspec.language.yaml_source import value_at
from dpspec.registry.loader import load_catalog

#: Seconds of processor time after which a spec has no answer.
LONGEST = 20.0

#: The relative error allowed between a bound and an exact value.
ROUNDING = 1e-9

#: Numbers that are set if the schema admits them, besides its limits.
REALS = (0.0, 5e-324, 1e-300, 1e-100, 1e-30, 1e-12, 1e-6, 1.0 - 2.0**-53, 1.0, 1e6, 1e12, 1e30, 1e100, 1e300)
INTEGERS = (0, 1, 2, 3, 1000, 10**6, 10**9, 2**31, 2**53 + 1, 2**63 - 1, 10**18)

DP = {"id": "dp", "kind": "approx-dp", "epsilon": 0.1, "delta": 1e-6}
MEMBER = {"id": "member", "kind": "membership", "advantage": 0.01}
ONE_STEP = {"noise_multiplier": 1.0, "clip_norm": 1.0, "steps": 20}
QUERY = {"scale": 2.0, "steps": 20, "sampling": {"scheme": "poisson", "rate": 0.1}, "baselines": []}
ZERO_OUT = {"adjacency": "zero-out"}


def spec_of(kind: str, mechanism: dict[str, Any], *claims: dict[str, Any], **blocks: Any) -> dict[str, Any]:
    return {
        "dpspec": 1,
        "name": kind,
        "mechanism": {"kind": kind, **mechanism},
        "data": {"kind": "declared", "records": 1000},
        "claims": [DP, *claims],
        **blocks,
    }


def group(sampling: dict[str, Any], **threat_model: Any) -> dict[str, Any]:
    renyi = {"id": "renyi", "kind": "renyi-dp", "alpha": 8.0, "epsilon": 0.1}
    pair = {**DP, "id": "pair", "group_size": 2}
    claims = [renyi] if sampling["scheme"] in ("poisson", "full") else []
    threat_model["group_size"] = [1, 2]
    return spec_of("group", {**ONE_STEP, "sampling": sampling}, MEMBER, pair, *claims, threat_model=threat_model)


def rero(noise: str, norm: str) -> dict[str, Any]:
    guess = {"id": "guess", "kind": "rero", "kappa": 0.01, "gamma": 0.02}
    prior = {"prior": {"kappa": [0.01]}}
    return spec_of("rero", {"noise": noise, **QUERY, "sensitivity": {norm: 1.0}}, MEMBER, guess, threat_model=prior)


def matrix(participation: dict[str, Any], **encoder: Any) -> dict[str, Any]:
    mechanism = {"steps": 12, "noise_multiplier": 2.0, "encoder": encoder, "participation": participation}
    return spec_of("matrix", mechanism, {"id": "mu", "kind": "gdp", "mu": 0.1}, threat_model=ZERO_OUT)


RELEASES = [
    {"kind": "gaussian", "sigma": 20.0, "sensitivity": 1.0, "rate": 0.5, "times": 3},
    {"kind": "laplace", "scale": 20.0, "sensitivity": 1.0, "times": 2},
    {"kind": "discrete-gaussian", "sigma": 12.0, "sensitivity": 1, "times": 2},
    {"kind": "randomized-response", "epsilon": 0.1, "answers": 3},
    {"kind": "exponential", "epsilon": 0.1, "times": 16},
    {"kind": "approx-dp", "epsilon": 0.1, "delta": 1e-9},
    {"kind": "zcdp", "rho": 1e-4},
    {"kind": "gdp", "mu": 0.01, "times": 5},
]
BLOBS = {"kind": "synthetic", "pattern": "blobs", "records": 200, "features": 8, "classes": 2}
LINEAR = {"data": BLOBS, "model": {"kind": "linear"}, "training": {"learning_rate": 0.5}}
POISSON = {"scheme": "poisson", "rate": 0.1}
MIXED = {"linf_truncation": 4, "mixing": {"threshold": 0.5}, "sampling": POISSON}
PRIVATE = {"kind": "gaussian", "eps_noise": 0.3, "lipschitz": 0.5}
NEAR = {"pipeline": [{"deduplicate": 0.01}], "collection": {"max_ball": 16, "max_cluster": 3}}
QUANTISED = {"pipeline": [{"quantise": 0.1}], "collection": {"max_ball": 16}}
FITTED = {"pipeline": [{"pca": 2}], "collection": {"min_eigengap": 0.1}}
IMPUTED = {
    "pipeline": [{"impute": "mean"}],
    "collection": {"max_missing_rows": 10, "min_observed": 100, "max_missing_in_row": 2, "max_mean_norm": 0.5},
}
PERSON = {"id": "person", "kind": "per-instance-dp", "epsilon": 0.1, "delta": 1e-6, "record": 7}
REPLACED = {"adjacency": "replace-one"}


def preprocessing(mechanism: dict[str, Any], private: dict[str, Any] = PRIVATE) -> dict[str, Any]:
    blocks = {"data": BLOBS, "threat_model": REPLACED}
    document = spec_of("preprocessing", {**mechanism, "private": private, "clip_rows": True}, **blocks)
    document["claims"] = [{**DP, "over": "collection"}]
    return document


#: A spec of each kind of mechanism, scheme and distribution of noise.
SPECS: tuple[dict[str, Any], ...] = (
    group(POISSON),
    group({"scheme": "truncated-poisson", "rate": 0.05, "max_batch": 100}, **ZERO_OUT),
    group({"scheme": "fixed", "batch_size": 50}, **ZERO_OUT),
    group({"scheme": "full"}),
    group({"scheme": "shuffled", "batch_size": 50}, **ZERO_OUT),
    group({"scheme": "random-allocation", "epoch_steps": 10}, **ZERO_OUT),
    rero("gaussian", "l2"),
    rero("laplace", "l1"),
    *(spec_of("composition", {"releases": [release]}, MEMBER) for release in RELEASES),
    spec_of("composition", {"releases": RELEASES[:3]}, MEMBER),
    matrix({"scheme": "cyclic", "separation": 4}, kind="square-root", bands=4),
    matrix({"scheme": "min-separation", "separation": 4, "times": 2}, kind="banded", coefficients=[1.0, 0.5, 0.25]),
    matrix({"scheme": "cyclic-poisson", "separation": 3, "rate": 0.1}, kind="square-root", bands=3),
    matrix({"scheme": "single"}, kind="buffers", weights=[0.5], decays=[0.9]),
    spec_of("modelmix", {**ONE_STEP, **MIXED}, **LINEAR),
    spec_of("modelmix", {**ONE_STEP, **MIXED, "noise": "laplace"}, **LINEAR),
    spec_of("per-instance", {**ONE_STEP, "sampling": POISSON, "orders": [2, 8, 32]}, PERSON, **LINEAR),
    preprocessing(NEAR),
    preprocessing(QUANTISED, {**PRIVATE, "kind": "laplace"}),
    preprocessing(FITTED),
    preprocessing(IMPUTED),
)


@dataclass
class Case:
    """A spec, the places and values of its changed numbers, and the outcome."""

    number: int
    document: dict[str, Any]
    changed: dict[str, float]
    outcome: str = ""
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"--only {self.number}: {self.document['mechanism']['kind']}: {self.changed}"


def values_of(key: NumericKey, chance: random.Random) -> list[float]:
    """The limits of a number, their neighbors, extreme numbers, and a third of numbers between, log-uniform."""
    if key.integer:
        values = [key.low, key.low + 1, key.high - 1, key.high, key.high + 1, *INTEGERS]
        values += [math.exp(chance.uniform(0.0, math.log(max(key.high, 2.0)))) for _ in range(len(values) // 2)]
        return [float(int(value)) for value in values]
    values = [key.low, math.nextafter(key.low, math.inf), math.nextafter(key.high, 0.0), key.high, *REALS]
    low = math.log(max(key.low, 1e-30))
    return values + [math.exp(chance.uniform(low, math.log(key.high))) for _ in range(len(values) // 2)]


def case(seed: int, number: int, catalog: Catalog) -> Case:
    """The case of a seed and a number, which the catalog need not admit."""
    chance = random.Random(f"{seed} {number}")
    document = json.loads(json.dumps(SPECS[number % len(SPECS)]))
    spec = from_document(document, catalog, ".")
    keys = [key for _, key in _keys(spec, catalog) if key is not None and key.path[0] != "data"]
    weights = [3 if key.value is not None and key.path[0] != "training" else 1 for key in keys]
    document, changed = spec.to_json(), {}
    for key in chance.choices(keys, weights, k=chance.choice((1, 1, 2, 3))):
        value, block = chance.choice(values_of(key, chance)), value_at(document, key.path[:-1])
        if isinstance(block, dict | list):  # not a list that another number replaced
            block[key.path[-1]] = int(value) if key.integer else value
            changed[key.place] = value
    return Case(number, document, changed)


def single_step(mechanism: dict[str, Any], records: int) -> Pair | None:
    """A step that an adversary observes, or one that is harder to attack; None if its exact value is unknown."""
    if mechanism["kind"] in ("group", "rero", "per-instance"):
        query = mechanism.get("sensitivity") or {"clip": 1.0}
        noise = float(mechanism.get("noise_multiplier", mechanism.get("scale", 0.0))) / float(
            next(iter(query.values()))
        )
        rate = inclusion(mechanism["sampling"], records)
        if noise <= 1e-100 or math.isinf(noise) or rate <= 0.0:  # less counts as none
            return None
        return Laplace(noise, 1.0, rate) if mechanism.get("noise") == "laplace" else Mixture.poisson(1, rate, noise)
    if mechanism["kind"] == "composition":
        release = mechanism["releases"][0]
        if release["kind"] == "gaussian":
            return Mixture.poisson(1, release.get("rate", 1.0), release["sigma"] / release.get("sensitivity", 1.0))
        if release["kind"] == "laplace":
            return Laplace(release["scale"] / release.get("sensitivity", 1.0), 1.0, 1.0)
    return None


def inclusion(sampling: dict[str, Any], records: int) -> float:
    """At most the probability with which a step uses a record."""
    scheme = sampling["scheme"]
    if scheme == "truncated-poisson":
        return float(sampling["rate"]) * float(binom.cdf(sampling["max_batch"] - 1, records - 1, sampling["rate"]))
    if scheme == "fixed":
        return min(1.0, float(sampling["batch_size"]) / records)
    if scheme == "shuffled":
        return 1.0 / math.ceil(records / sampling["batch_size"])
    if scheme == "random-allocation":
        return float(sampling.get("batches_per_epoch", 1)) / float(sampling["epoch_steps"])
    return float(sampling.get("rate", 1.0))


def false_bounds(document: dict[str, Any], audit: AuditResult) -> Iterator[str]:
    """Upper bounds below an exact value: of one step, or of the trivial attack."""
    claims = {claim["id"]: claim for claim in document["claims"]}
    pair = single_step(document["mechanism"], int(document["data"]["records"]))
    for verdict in audit.verdicts:
        claim, upper = claims[verdict.claim], verdict.upper
        if verdict.verdict == "proved" and (upper is None or not upper <= verdict.claimed):
            yield f"{verdict.claim} is proved, but its bound is {upper!r}"
        if upper is None:
            continue
        if math.isnan(upper) or upper < 0.0 or (verdict.lower or 0.0) > upper * (1.0 + ROUNDING):
            yield f"{verdict.claim}: the bounds are {verdict.lower!r} and {upper!r}"
        if claim["kind"] == "rero" and upper < float(claim["kappa"]) * (1.0 - ROUNDING):
            yield f"{verdict.claim}: gamma <= {upper!r} is below kappa"
        if pair is None or claim["kind"] not in ("approx-dp", "membership") or math.isinf(upper):
            continue
        epsilon, level = (upper, claim["delta"]) if claim["kind"] == "approx-dp" else (0.0, upper)
        with mpmath.workdps(400):
            exact = exact_delta(pair, epsilon, "present-first")
        if exact is not None and exact > mpmath.mpf(level) * (1 + mpmath.mpf(ROUNDING)):
            yield f"{verdict.claim}: {verdict.quantity} <= {upper!r}, but one step has {mpmath.nstr(exact, 9)}"


def bound(tried: Case, catalog: Catalog) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST, 1.0)
    try:
        with warnings.catch_warnings(action="error"):
            spec = from_document(tried.document, catalog, ".")
            (audit,) = runner.run([spec], catalog, store=None, train=False).audits
        tried.outcome = "answered"
        if not any(verdict.upper is not None or verdict.lower is not None for verdict in audit.verdicts):
            tried.outcome = "unbounded"
        tried.findings += false_bounds(tried.document, audit)
        if tried.findings:
            tried.outcome = "wrong"
    except SpecError as error:
        tried.outcome = "refused"
        tried.findings += [f"no location: {d.message}" for d in error.diagnostics if not (d.path and d.message)]
    except LateError as error:
        tried.outcome = "slow"
        tried.findings.append(str(error))
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "dpspec" in frame.filename]
        line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        tried.outcome = "broken"
        tried.findings.append(f"{type(error).__name__} at {line}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


class LateError(BaseException):
    """A spec without an answer within ``LONGEST`` seconds."""


def stop_late(signum: int, frame: FrameType | None) -> None:
    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "?"
    raise LateError(f"no answer in {LONGEST:.0f} s, at {where}")


def main() -> int:
    """Print the counts of outcomes by mechanism and the findings; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1500, help="the number of cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat one case of --seed and print it")
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, stop_late)
    catalog, tried_cases = load_catalog(), []
    numbers = range(options.count) if options.only is None else [options.only]
    with suppress(KeyboardInterrupt):  # the counts so far
        for number in numbers:
            tried = case(options.seed, number, catalog)
            bound(tried, catalog)
            if options.only is not None:
                print(json.dumps(tried.document), tried.outcome)
            for finding in tried.findings:
                print(f"{tried}\n    {tried.outcome}: {finding}", flush=True)
            tried_cases.append(tried)
    for kind in dict.fromkeys(each.document["mechanism"]["kind"] for each in tried_cases):
        counts = Counter(each.outcome for each in tried_cases if each.document["mechanism"]["kind"] == kind)
        print(f"{kind:13} {', '.join(f'{count} {outcome}' for outcome, count in counts.most_common())}")
    return 1 if any(each.findings for each in tried_cases) else 0


if __name__ == "__main__":
    sys.exit(main())
