"""What the attack cannot do, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec_group.options import KINDS, Attack, attack_of_spec

#: Trials embed the order of their canaries; more than this does not fit their evidence.
MAX_CANARIES = 50_000

#: The gradients of all input canaries are held at once, and their products: bytes at most.
_MAX_BYTES = 2**30

#: With fewer canaries, or runs, than this nothing can be shown.
_LEAST_CANARIES, _LEAST_RUNS = 8, 16

#: Runs that are looked at one after the other: no more are read by their test (``dpspec.stats.nulls``).
MOST_IN_TURN = 10**5

_CANARY = ("audit", "canary")


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    canary = spec.audit.options.get("canary")
    if canary is None:
        yield dps.Diagnostic(
            code="missing-key",
            message="missing key 'canary' in audit",
            path=("audit",),
            help="for example canary: {space: gradient, kind: orthogonal, count: 1000}",
        )
        return
    if facts.digest is None:
        yield dps.Diagnostic(
            code="data-not-at-hand",
            message="data that is only declared can be bounded, not trained on",
            path=("audit",),
            help="leave audit out, or name the data",
        )
    space = str(canary.get("space", "gradient"))
    kind = str(canary.get("kind", KINDS[space][0]))
    if kind not in KINDS[space]:
        yield _unknown_kind(kind, space)
        return
    attack = attack_of_spec(spec)
    yield from _needs(spec, facts, attack)
    if facts.parameters is None:
        yield dps.Diagnostic(
            code="no-model", message="an audit trains a model, and the spec names none", path=("audit",)
        )
        return
    yield from _options(canary, spec.audit.options, attack)
    if attack.method == "many-run":
        yield from _many_runs(spec.audit.runs, canary, attack)
    elif "count" not in canary:
        yield dps.Diagnostic(code="missing-key", message="missing key 'count' in audit.canary", path=_CANARY)
    else:
        yield from _counts(int(canary["count"]), attack)
    yield from _room(facts, attack)


def _unknown_kind(kind: str, space: str) -> dps.Diagnostic:
    near = difflib.get_close_matches(kind, KINDS[space], n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    other = next((name for name, kinds in KINDS.items() if kind in kinds), None)
    return dps.Diagnostic(
        code="unsupported",
        message=f"{kind!r} is not a kind of {space} canary{meant} (valid: {', '.join(KINDS[space])})",
        path=(*_CANARY, "kind"),
        help=f"it is one of {other} canaries: write space: {other}" if other else None,
    )


def _needs(spec: dps.Spec, facts: dps.Facts, attack: Attack) -> Iterator[dps.Diagnostic]:
    needs = {"iterates": attack.white_box, "gradient-canaries": attack.space == "gradient"}
    instead = {"iterates": "access: final-model needs none", "gradient-canaries": "canaries in space: input need none"}
    for need, needed in needs.items():
        if needed and need not in facts.capabilities:
            yield dps.Diagnostic(
                code="missing-capability",
                message=f"backend {spec.training.kind!r} lacks {need!r}, which this attack needs",
                path=("training", "backend"),
                help=instead[need],
            )
    if attack.white_box and (spec.training.get("optimizer") or {}).get("kind") == "adam":
        yield dps.Diagnostic(
            code="unsupported",
            message="the attack undoes each update, and what Adam made of a noisy sum cannot be undone",
            path=("training", "optimizer"),
            help="the bounds hold for adam too: leave audit out, attack by access: final-model, or train with sgd or "
            "momentum",
        )


def _options(canary: dps.FrozenMap, audit: dps.FrozenMap, attack: Attack) -> Iterator[dps.Diagnostic]:
    if "spread" in canary and attack.space != "gradient":
        yield dps.Diagnostic(
            code="unsupported",
            message="spread turns the gradients of a group's members apart; the members of an input group are equal",
            path=(*_CANARY, "spread"),
        )
    if "score" in audit and (attack.white_box or attack.space != "input"):
        yield dps.Diagnostic(
            code="unsupported",
            message="score chooses what a final model is asked about planted records; "
            + ("here every iterate is seen" if attack.white_box else "here gradients are planted"),
            path=("audit", "score"),
            help="leave score out",
        )
    if attack.sequential and attack.method != "many-run":
        yield dps.Diagnostic(
            code="unsupported",
            message="stop: settled ends many runs as soon as they show enough; the test of one-run is of a number of "
            "guesses that was fixed before",
            path=("audit", "stop"),
            help="leave stop out, or write method: many-run",
        )
    if attack.calibrated and attack.method == "many-run":
        yield dps.Diagnostic(
            code="unsupported",
            message="likelihood-ratio learns from the other canaries of a run, and many runs have one of each size",
            path=("audit", "score"),
            help="with many-run write score: loss or loss-difference",
        )


def _many_runs(runs: int, canary: dps.FrozenMap, attack: Attack) -> Iterator[dps.Diagnostic]:
    if int(canary.get("count", len(attack.sizes))) != len(attack.sizes):
        yield dps.Diagnostic(
            code="bad-value",
            message=f"count must be {len(attack.sizes)} with many-run, one group of each size, got {canary['count']}",
            path=(*_CANARY, "count"),
            help="leave count out; audit.runs decides how much can be shown",
        )
    if runs < _LEAST_RUNS:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"runs must be at least {_LEAST_RUNS} with many-run, got {runs}",
            path=("audit", "runs"),
        )
    if attack.sequential and runs > MOST_IN_TURN:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"runs must be at most {MOST_IN_TURN} with stop: settled, got {runs}",
            path=("audit", "runs"),
            help="leave stop out, or write fewer runs",
        )


def _counts(count: int, attack: Attack) -> Iterator[dps.Diagnostic]:
    sizes, least = len(attack.sizes), _LEAST_CANARIES * (2 if attack.calibrated else 1)
    if count // sizes < least:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"count must be at least {least * sizes}, {least} for each group size, got {count}",
            path=(*_CANARY, "count"),
        )


def _room(facts: dps.Facts, attack: Attack) -> Iterator[dps.Diagnostic]:
    assert facts.parameters is not None
    limits: Sequence[tuple[int, str]]
    if attack.space == "gradient":
        each = 2 if attack.spread > 0 else 1
        what = "a direction of its own" if each == 1 else "two dimensions of its own, its members turn within them,"
        limits = [(facts.parameters // each, f"every canary needs {what} among {facts.parameters} parameters")]
    else:
        held = _MAX_BYTES // (4 * facts.parameters) if attack.white_box else MAX_CANARIES
        limits = [(held, f"the gradients of all canaries by {facts.parameters} parameters are held at once")]
        if attack.kind == "blank":
            limits = [*limits, (facts.classes, "there is one blank record for each label")]
    for most, why in [*limits, (MAX_CANARIES, "the order of all canaries is kept in the result")]:
        if attack.count > most:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"count must be at most {most}, got {attack.count}: {why}",
                path=(*_CANARY, "count"),
            )
            return
