"""What this plugin refuses, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.attacks import USUAL
from dpspec.kit.scores_elsewhere import scores_block
from dpspec.training.loop.learning_rates import updates_invertible
from dpspec_group.options import Attack

#: Less noise than this, in clip norms, is a slip of the pen, and beyond what the accounting computes with.
LEAST_NOISE = 1e-6

#: Trials embed the order of their canaries; more than this does not fit their evidence.
MAX_CANARIES = 50_000

#: The gradients of all input canaries are held at once, and their products: bytes at most.
_MAX_BYTES = 2**30

#: With fewer canaries, or runs, than this nothing can be shown.
_LEAST_CANARIES, _LEAST_RUNS = 8, 16

#: Runs that are looked at one after the other: no more are read by their test (``stats.attacks.evidence_tests``).
MOST_IN_TURN = 10**5

#: Ways of drawing batches that the theory covers.
_SCHEMES = ("poisson", "truncated-poisson", "fixed", "full", "random-allocation")

#: Of these, those that cover members who stay and count for nothing.
_ZEROED = {"poisson", "full", "random-allocation"}

#: Batches of which the black-box conversions have no profile of one record to start from, and why.
_NO_PROFILE = {
    "truncated-poisson": "their profile is an interval",
    "random-allocation": "their profile is no mixture of Gaussians'",
}

_CANARY = ("audit", "canary")


def refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the spec cannot be audited as it stands, and warnings about what it will show."""
    yield from _adjacencies(spec)
    yield from _transcripts(spec)
    yield from _sizes(spec, facts)
    yield from _mechanism(spec, facts)
    if spec.audit is not None:
        yield from attack_refusals(spec, facts)


def _adjacencies(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Members that are put to nothing are covered where batches are Poisson, full, allocated or shuffled, and nothing
    is attacked; shuffled ones for those alone. Whose records come or go may be attacked, whatever covers them."""
    schemes = {phase.sampling.scheme for phase in spec.phases}
    if spec.audit is None and schemes <= _ZEROED and _named(spec) <= {"add-remove", "zero-out"}:
        return
    if _zeroed(spec) and schemes <= {*_ZEROED, "shuffled"}:
        return
    help = "Ganesh 2024 bounds groups that are added or removed; replacing a group is not covered"
    yield from dps.other_adjacencies(spec, "add-remove", "the group theory", help)


def _transcripts(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    """Who else was drawn says nothing of a group where each record has a coin of its own, or all are drawn."""
    if spec.threat_model.access != "transcript":
        return
    if any(phase.sampling.of_users for phase in spec.phases):
        yield kit.unsupported(
            "a step tells which users it drew, and not which of their records: nobody could take away what these added",
            ("threat_model", "access"),
            "write access: all-iterates",
        )
    for scheme in sorted({phase.sampling.scheme for phase in spec.phases} - {"poisson", "full"}):
        yield kit.unsupported(
            f"with {scheme} sampling who else was drawn tells of a record whether it was: no bound covers a transcript",
            ("threat_model", "access"),
            "write access: all-iterates, or sampling: {scheme: poisson, ...}",
        )


def _named(spec: dps.Spec) -> set[str]:
    return {claim.adjacency for claim in spec.claims} | {spec.threat_model.adjacency}


def _zeroed(spec: dps.Spec) -> bool:
    """Whether all that is spoken of are members that stay and are put to nothing, and nothing is attacked."""
    return spec.audit is None and _named(spec) == {"zero-out"}


def _sizes(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    named = [(("threat_model", "group_size"), size) for size in spec.threat_model.group_size]
    named += [(("claims", i, "group_size"), c.group_size) for i, c in enumerate(spec.claims)]  # type: ignore[misc]
    seen: set[tuple[dps.Path, int]] = set()
    for path, size in named:
        if size > facts.records and (path, size) not in seen:
            seen.add((path, size))
            yield dps.Diagnostic(
                code="group-too-large",
                message=f"a group of {size} records does not fit into {facts.records} training records",
                path=path,
            )


def _mechanism(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    black_box = {"vadhan-literal", "vadhan-sharp"} & set(spec.mechanism.get("baselines", ()))
    drawn = {phase.sampling.scheme for phase in spec.phases}
    for scheme, why in _NO_PROFILE.items():
        if black_box and scheme in drawn:
            yield kit.unsupported(
                f"{' and '.join(sorted(black_box))} of {scheme} batches: {why}",
                ("mechanism", "baselines"),
                "leave them out; linear and full-batch are there",
            )
    largest = max([*spec.threat_model.group_size, *(c.group_size for c in spec.claims)])
    for i, phase in enumerate(spec.phases):
        sampling, noise = phase.sampling, phase.noise_multiplier
        why = (
            ": all of an epoch's batches change with a record that comes or goes"
            if sampling.scheme == "shuffled"
            else ""
        )
        yield from kit.other_scheme(
            spec,
            i,
            (*_SCHEMES, "shuffled") if _zeroed(spec) or spec.audit is not None else _SCHEMES,
            f"no theorem here covers {{batches}}{why}",
            "train with poisson or fixed sampling; the bound for one does not hold for the other. Of shuffled batches "
            "adjacency: zero-out, without audit, has a bound that is not amplified; with an audit block they are "
            "attacked, so that claims can be refuted and none is proved",
        )
        if sampling.scheme == "shuffled" and (sampling.batch_size or 0) > facts.records:
            yield kit.bad_value(
                f"batch_size {sampling.batch_size} is more than the {facts.records} records",
                dps.in_phase(spec, i, "sampling", "batch_size"),
            )
        if (
            sampling.scheme == "fixed"
            and sampling.batch_size is not None
            and sampling.batch_size > facts.records - largest
        ):
            yield kit.bad_value(
                f"batch_size {sampling.batch_size} is more than the {facts.records - largest} records that "
                f"are left without a group of {largest}",
                dps.in_phase(spec, i, "sampling", "batch_size"),
            )
        if sampling.epoch_steps is not None and sampling.batches_per_epoch > sampling.epoch_steps:
            yield kit.bad_value(
                f"batches_per_epoch must be at most epoch_steps, {sampling.epoch_steps}, "
                f"got {sampling.batches_per_epoch}",
                dps.in_phase(spec, i, "sampling", "batches_per_epoch"),
            )
        if sampling.epoch_steps is not None and phase.steps % sampling.epoch_steps:
            more = phase.steps - phase.steps % sampling.epoch_steps + sampling.epoch_steps
            yield kit.bad_value(
                f"steps must be a whole number of epochs of {sampling.epoch_steps} steps, got {phase.steps}",
                dps.in_phase(spec, i, "steps"),
                f"write {more}, or another multiple of {sampling.epoch_steps}",
            )
        if 0.0 < noise < LEAST_NOISE:
            yield kit.bad_value(
                f"noise_multiplier must be 0 or at least {LEAST_NOISE:g}, got {noise:g}",
                dps.in_phase(spec, i, "noise_multiplier"),
                "with less noise epsilon is too large to mean anything",
            )
        if phase.noiseless:
            yield dps.Diagnostic(
                code="no-noise",
                message="without noise epsilon is infinite",
                path=dps.in_phase(spec, i, "noise_multiplier"),
                severity="warning",
            )


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    if "scores" in spec.audit.options:
        if spec.model is not None and isinstance(spec.model.get("initial"), str):
            yield kit.unsupported(
                "another program trained and wrote the scores: nobody here chose the weights that it started from",
                ("model", "initial"),
                "leave initial out",
            )
        yield from scores_block.refusals(spec)
        return
    canary = spec.audit.options.get("canary")
    if canary is None:
        help = "for example canary: {space: gradient, kind: orthogonal, count: 1000}"
        yield kit.missing_key("canary", ("audit",), help)
        return
    yield from kit.requires_data(facts)
    attack = Attack.of(spec)
    yield from _needs(spec, facts, attack)
    yield from kit.requires_model(facts)
    if facts.parameters is None:
        return
    if attack.every > spec.steps:
        yield kit.bad_value(
            f"every must be at most the {spec.steps} steps, got {attack.every}: canaries would never have gradients",
            (*_CANARY, "every"),
        )
    yield from _options(canary, spec.audit.options, spec.training.options, attack)
    yield from _twins(spec, attack)
    yield from _estimates(spec, facts, attack)
    if attack.method == "many-run":
        yield from _many_runs(spec.audit.runs, canary, attack)
    elif "count" not in canary:
        yield kit.missing_key("count", _CANARY)
    else:
        yield from _counts(int(canary["count"]), attack)
    yield from _room(facts, attack)


def _needs(spec: dps.Spec, facts: dps.Facts, attack: Attack) -> Iterator[dps.Diagnostic]:
    needs: dict[str, str | None] = {}
    if attack.white_box:
        needs["iterates"] = "access: final-model needs no such backend"
    if attack.others_drawn:
        needs["sampling-log"] = "access: all-iterates needs no such backend"
    if attack.space == "gradient":
        needs["gradient-canaries"] = "canaries in space: input need no such backend"
    yield from kit.requires_capabilities(spec, facts, needs)
    if attack.white_box and not updates_invertible(spec.training.options):
        yield kit.unsupported(
            "the attack undoes each update, and what Adam made of a noisy sum cannot be undone",
            ("training", "optimizer"),
            "the bounds hold for adam too: leave audit out, attack by access: final-model, or train with sgd or "
            "momentum",
        )


def _options(
    canary: dps.FrozenMap, audit: dps.FrozenMap, training: dps.FrozenMap, attack: Attack
) -> Iterator[dps.Diagnostic]:
    if "spread" in canary and attack.space != "gradient":
        yield kit.unsupported(
            "spread turns the gradients of a group's members apart; the members of an input group are equal",
            (*_CANARY, "spread"),
        )
    elif attack.spread > 0 and attack.kind != USUAL["gradient"]:
        yield kit.unsupported(
            f"spread turns members within coordinates that no other canary has, and {attack.kind!r} promises none",
            (*_CANARY, "spread"),
            f"leave spread out, or write kind: {USUAL['gradient']}",
        )
    if attack.every > 1 and (attack.white_box or attack.space != "gradient"):
        yield kit.unsupported(
            "every leaves steps without the canaries' gradients, so that noise hides what one adds; "
            + ("here every iterate is seen" if attack.white_box else "planted records are in every step"),
            (*_CANARY, "every"),
            "leave every out, or write access: final-model and space: gradient",
        )
    if "score" in audit and (attack.white_box or attack.space != "input"):
        yield kit.unsupported(
            "score chooses what a final model is asked about planted records; "
            + ("here every iterate is seen" if attack.white_box else "here gradients are planted"),
            ("audit", "score"),
            "leave score out",
        )
    if attack.sequential and attack.method != "many-run":
        yield kit.unsupported(
            "stop: settled ends many runs as soon as they show enough; the test of one-run is of a number of "
            "guesses that was fixed before",
            ("audit", "stop"),
            "leave stop out, or write method: many-run",
        )
    if attack.shard_runs is not None and attack.method != "many-run":
        yield kit.unsupported(
            "shard_runs shares out runs that train together; those of one-run are tasks of their own already",
            ("audit", "shard_runs"),
            "leave shard_runs out, or write method: many-run",
        )
    if attack.takes_gradients and not updates_invertible(training):
        yield kit.unsupported(
            f"{attack.score} scores by sums of gradients, and what Adam made of them cannot be undone",
            ("audit", "score"),
            "write score: loss-difference, or train with sgd or momentum",
        )
    if attack.calibrated and attack.method == "many-run":
        yield kit.unsupported(
            f"{attack.score} learns from the other canaries of a run, and many runs have one of each size",
            ("audit", "score"),
            "with many-run write score: loss or loss-difference",
        )
    if attack.trains and attack.method == "many-run":
        yield kit.unsupported(
            f"{attack.score} trains {attack.trains} models for each run to learn how records differ, and many runs "
            "plant the same record, whose scores are compared with each other",
            ("audit", "score"),
            "with many-run write score: loss or loss-difference",
        )


def _twins(spec: dps.Spec, attack: Attack) -> Iterator[dps.Diagnostic]:
    """Claims about accuracy are tested on the model that was trained without canaries."""
    for i, claim in enumerate(spec.claims):
        if claim.kind == "metric" and not attack.twin:
            yield kit.unsupported(
                f"claim {claim.id!r} is about the twin, which twin: false leaves out",
                ("claims", i),
                "leave out twin, or the claim",
            )


def _estimates(spec: dps.Spec, facts: dps.Facts, attack: Attack) -> Iterator[dps.Diagnostic]:
    """A sample of the records tells what all of them add where each enters a batch by a coin of its own."""
    if attack.expected_from is None:
        return
    path = ("audit", "expected_from")
    why: tuple[str, str] | None = None
    if attack.others_drawn:
        why = "is told who was drawn and estimates nothing", "leave expected_from out, or write access: all-iterates"
    elif attack.method == "many-run":
        why = "looks at many runs together, which ask all records", "leave expected_from out, or write method: one-run"
    elif not attack.watched(facts.capabilities, spec.training.options):
        why = "sees no iterate whose update could be undone, so that nothing is estimated", "leave expected_from out"
    if why is not None:
        yield kit.unsupported(f"the adversary of this attack {why[0]}", path, why[1])
        return
    batch = 0.0
    for i, phase in enumerate(spec.phases):
        if phase.sampling.scheme != "poisson" or phase.sampling.of_users:
            drawn = "users are" if phase.sampling.of_users else f"{phase.sampling.scheme} batches are"
            yield kit.unsupported(
                f"expected_from estimates what Poisson batches of records add on average, and here {drawn} drawn",
                dps.in_phase(spec, i, "sampling"),
                "leave expected_from out",
            )
            return
        batch = max(batch, phase.rate() * facts.records)
    # A product of a rate and a number of records may be rounded upwards.
    if not batch * (1.0 - 1e-12) <= attack.expected_from <= facts.records:
        yield kit.bad_value(
            f"expected_from must be at least the {batch:g} records that a batch holds on average, and at most all "
            f"{facts.records}, got {attack.expected_from}: with fewer one of them would count for more than itself",
            path,
        )


def _many_runs(runs: int, canary: dps.FrozenMap, attack: Attack) -> Iterator[dps.Diagnostic]:
    sizes = len(attack.sizes)
    if int(canary.get("count", sizes)) != sizes:
        yield kit.bad_value(
            f"count must be {sizes} with many-run, one group of each size, got {canary['count']}",
            (*_CANARY, "count"),
            "leave count out; audit.runs decides how much can be shown",
        )
    if runs < _LEAST_RUNS:
        yield kit.bad_value(f"runs must be at least {_LEAST_RUNS} with many-run, got {runs}", ("audit", "runs"))
    if attack.sequential and runs > MOST_IN_TURN:
        yield kit.bad_value(
            f"runs must be at most {MOST_IN_TURN} with stop: settled, got {runs}",
            ("audit", "runs"),
            "leave stop out, or write fewer runs",
        )


def _counts(count: int, attack: Attack) -> Iterator[dps.Diagnostic]:
    sizes, least = len(attack.sizes), _LEAST_CANARIES * (2 if attack.calibrated else 1)
    if count // sizes < least:
        message = f"count must be at least {least * sizes}, {least} for each group size, got {count}"
        yield kit.bad_value(message, (*_CANARY, "count"))


def _room(facts: dps.Facts, attack: Attack) -> Iterator[dps.Diagnostic]:
    assert facts.parameters is not None
    limits: Sequence[tuple[int, str]]
    if attack.space == "gradient":
        each = 2 if attack.spread > 0 else 1
        what = "a direction of its own" if each == 1 else "two dimensions of its own, its members turn within them,"
        limits = [(facts.parameters // each, f"every canary needs {what} among {facts.parameters} parameters")]
        if attack.kind != USUAL["gradient"]:
            held = _MAX_BYTES // (16 * facts.parameters)
            limits = [*limits, (held, f"the directions of all canaries among {facts.parameters} parameters are held")]
    else:
        at_once = attack.white_box or attack.takes_gradients
        held = _MAX_BYTES // (4 * facts.parameters) if at_once else MAX_CANARIES
        limits = [(held, f"the gradients of all canaries by {facts.parameters} parameters are held at once")]
    for most, why in [*limits, (MAX_CANARIES, "the order of all canaries is kept in the result")]:
        if attack.count > most:
            yield kit.bad_value(f"count must be at most {most}, got {attack.count}: {why}", (*_CANARY, "count"))
            return
