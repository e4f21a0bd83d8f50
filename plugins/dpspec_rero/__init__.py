"""Audits how well records could be reconstructed (Kaissis et al. 2023; Hayes et al. 2023)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import CLIP_NORM, NOISE_MULTIPLIER, SAMPLING, SHARD_RUNS
from dpspec_rero.options import refusals

DPSPEC_API = 1

_SENSITIVITY: dict[str, dps.Json] = {
    **kit.block(
        "Largest change of a step's query by one record: in the l1 norm for Laplace noise, in the l2 norm for "
        "Gaussian noise. Replaces clip_norm.",
        l1=kit.number("The sensitivity in the l1 norm.", least=1e-12, most=1e12),
        l2=kit.number("The sensitivity in the l2 norm.", least=1e-12, most=1e12),
    ),
    "minProperties": 1,
    "maxProperties": 1,
}

_MECHANISM: dict[str, dps.Json] = {
    **kit.block(
        None,
        ["sampling"],
        noise=kit.choice("Distribution of the noise in every step.", "gaussian", "laplace", default="gaussian"),
        noise_multiplier=NOISE_MULTIPLIER,
        clip_norm=CLIP_NORM,
        scale=kit.number(
            "Noise in units of the query: the scale b of Laplace noise, the standard deviation of Gaussian noise. "
            "Replaces noise_multiplier.",
            least=0,
            most=1e12,
        ),
        sensitivity=_SENSITIVITY,
        sampling=SAMPLING,
    ),
    "if": {"required": ["scale"]},
    "then": {"required": ["sensitivity"], "properties": {"noise_multiplier": False, "clip_norm": False}},
    "else": {"required": ["noise_multiplier", "clip_norm"], "properties": {"sensitivity": False}},
}

#: A number that may be written as 1/n.
_FRACTION: dict[str, dps.Json] = {"format": "fraction", "pattern": "^1/([2-9]|[1-9][0-9]{1,14})$"}

_THREAT_MODEL: dict[str, dps.Json] = kit.block(
    None,
    prior={
        **kit.block(
            "The adversary's prior knowledge about the record.",
            **{
                "kappa": {
                    **_FRACTION,
                    "type": ["number", "string", "array"],
                    "exclusiveMinimum": 0,
                    "maximum": 1,
                    "minItems": 1,
                    "maxItems": 100,
                    "uniqueItems": True,
                    "items": kit.number("A baseline success.", above=0, most=1)
                    | {**_FRACTION, "type": ["number", "string"]},
                    "description": "Success probability of the best guess without the release, also as a fraction "
                    "such as 1/256; a list requests a bound at each value.",
                },
                "candidates": kit.integer(
                    "Number of candidate records that the adversary knows; the baseline is 1 / candidates unless "
                    "probabilities or top are set.",
                    least=2,
                    most=4096,
                ),
                "from": kit.choice(
                    "Source of the attack's candidates: all training records, records of the same class, or planted: "
                    "synthetic records with one non-zero feature each, which come close to the worst case of the "
                    "bound.",
                    "all",
                    "same-class",
                    "planted",
                    default="all",
                ),
                "probabilities": kit.array(
                    "Prior probability of each candidate; uniform by default.",
                    kit.number("A probability.", least=0, most=1),
                    least=2,
                    most=4096,
                ),
                "top": kit.integer(
                    "The adversary wins if the record is among this number of best candidates.", least=1, default=1
                ),
            },
        ),
        "minProperties": 1,
    },
)

RERO = dps.Mechanism(
    kind="rero",
    summary="Reconstruction robustness of DP-SGD and similar mechanisms, from hypothesis testing",
    assumptions=("dpspec_rero.findings",),
    description="training with noise (DP-SGD), with a bound on the success of reconstructing a record",
    schemas=dps.Schemas(mechanism=_MECHANISM, threat_model=_THREAT_MODEL, audit=kit.block(None, shard_runs=SHARD_RUNS)),
    metrics=frozenset({"accuracy"}),
    claims=frozenset({"rero", "approx-dp", "pure-dp", "membership", "tradeoff", "metric"}),
    audit="dpspec_rero:ReroAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    trial_revision=3,
    losses=True,
)

#: Largest number of runs per chunk, and largest number of bytes of their records.
_TOGETHER, _ROWS_BYTES = 64, 1 << 28


class ReroAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        return refusals(spec, facts)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_rero.findings import gamma_outcomes, leakage_of, membership_findings
        from dpspec_rero.options import KAPPAS, Prior

        leakage = leakage_of(spec.phases)
        prior = Prior.of(spec.threat_model.options)
        named = {*prior.kappas, *(float(claim["kappa"]) for claim in spec.claims if claim.kind == "rero")}
        if prior.candidates is not None:
            named.add(prior.candidates.kappa)
        context.progress(0, 2, "gamma")
        yield from gamma_outcomes(leakage, sorted(named or KAPPAS))
        context.progress(1, 2, "membership")
        yield from membership_findings(spec, leakage)
        context.progress(2, 2, "membership")

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        from dpspec.accounting import round_down
        from dpspec.stats import binomial
        from dpspec_rero.findings import foreseen_checks
        from dpspec_rero.options import Prior, adds_laplace

        assert spec.audit is not None
        candidates = Prior.of(spec.threat_model.options).candidates
        assert candidates is not None
        runs, parameters = spec.audit.runs, facts.parameters or 0
        row_bytes = 4 * max(1, facts.features)
        planted = candidates.count if candidates.source == "planted" else 0
        laplace = adds_laplace(spec.phases)  # these runs train one by one
        limit = 1 if laplace else min(_TOGETHER, int(spec.audit.options.get("shard_runs") or _TOGETHER))
        together = max(1, min(limit, _ROWS_BYTES // (row_bytes * (facts.records + planted))))
        rate = max(phase.sampling.rate or 1.0 for phase in spec.phases)
        gradients = 2.0 * rate * facts.records + candidates.count
        steps = runs * spec.steps
        chunks = kit.chunks(runs, together)
        seconds = kit.training_seconds(parameters, steps * gradients, steps / together)
        return dps.Plan(
            chunks=chunks,
            seconds=seconds,
            memory_bytes=3 * together * row_bytes * facts.records + (1 << 29),
            notes=(
                "At most this attack could show gamma >= "
                f"{round_down(binomial.lower(runs, runs, spec.audit.confidence), 3):g} at kappa "
                f"{candidates.kappa:.3g}, if all {runs} trials named the target",
                *kit.shard_notes(runs, len(chunks), seconds),
            ),
            checks=tuple(foreseen_checks(spec, facts)),
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterator[dps.Trial]:
        from dpspec_rero.attack import run_trials

        return run_trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        from dpspec_rero.findings import outcomes

        return outcomes(spec, trials)

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        inputs = kit.select_inputs(
            super().trial_inputs(spec),
            threat_model=("adjacency", "access", "prior"),
            audit_without=("shard_runs",),
        )
        threat = inputs["threat_model"]
        if threat["prior"] is None:
            return inputs
        prior = {key: value for key, value in threat["prior"].items() if key not in ("kappa", "top")}
        return dps.FrozenMap({**inputs, "threat_model": {**threat, "prior": prior}})


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield RERO
