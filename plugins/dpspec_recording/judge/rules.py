"""The rules that fire on a recorded run: their cautions, and those that the user accepts."""

from collections.abc import Collection, Mapping

import numpy as np

from dpspec.contract.executed import FiredRule
from dpspec.contract.rules import Rule, RuleRun
from dpspec.errors import RecordingError
from dpspec.registry.loader import Failed, foreign_code
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.run_claim import installed_rules
from dpspec_recording.observers.rules import RuleFacts, Rules, code_of
from dpspec_recording.observers.sampling.batches import Batches


def fired_rules(
    run: RecordedRun,
    *,
    delta: float,
    group_size: int,
    accept: Mapping[str, str],
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> tuple[FiredRule, ...]:
    """The rules that fire. select: the rules to evaluate, all if empty; ignore: rules that are not evaluated."""
    facts, of_run = run.fact(Rules), _rule_run(run, delta, group_size)
    fired = []
    for name, rule in installed_rules().items():
        if (select and name not in select) or name in ignore:
            continue
        text = _caution(rule, facts, of_run)
        if text:
            fired.append(FiredRule(name=name, text=text, why=rule.why, fix=rule.fix, accepted=accept.get(name, "")))
    return tuple(fired)


def _caution(rule: Rule, facts: RuleFacts | None, run: RuleRun) -> str:
    """The first caution over the parts and ranks of a run; of a rule without facts, over the run alone."""
    try:
        with foreign_code():
            code = code_of(rule)
            observed = [] if facts is None else facts.of(rule, code.kind)
            usable = [fact for fact in observed if fact is not None]
            is_failed = facts is not None and rule.name in facts.failed
            if not usable and not is_failed and not (unobserved := code().facts()):
                usable = [unobserved]
            return next(filter(None, (str(code.caution(fact, run)) for fact in usable)), "")
    except Failed as error:
        raise RecordingError(f"rule {rule.name}: cannot read its facts in the recording: {error}") from None


def _rule_run(run: RecordedRun, delta: float, group_size: int) -> RuleRun:
    internal, rates = run.internal, [rate for rate in run.rates if rate is not None]
    drawn, rows = run["drawn"], run["rows"]
    both = np.isfinite(drawn) & np.isfinite(rows) & ~run.filled
    batches, used = run.fact(Batches), int(np.nansum(run["batches"]))
    unused_known = batches is not None and bool(np.isfinite(run["batches"]).any())
    lower_quartiles = np.full(run.steps, np.nan) if internal is None else internal.lower
    compared = np.isfinite(lower_quartiles) & (np.nan_to_num(rows, nan=0.0) >= 4.0)
    return RuleRun(
        own_loop=run.header.is_reported,
        steps=run.steps,
        delta=delta,
        group_size=group_size,
        records=run.header.records,
        rate=max(rates) if len(rates) == run.steps else None,
        drawn_batches=used + batches.unused if batches is not None and unused_known else None,
        used_batches=used if unused_known else None,
        passed_over=None if run.end is None else 0 if batches is None else batches.passed_over,
        empty_steps=int((drawn == 0).sum()) if np.isfinite(drawn).any() else None,
        drawn_records=int(drawn[both].sum()) if both.any() else None,
        gradient_rows=int((rows[both] - run.further_rows).sum()) if both.any() else None,
        zero_quarter_steps=int((lower_quartiles[compared] == 0.0).sum()),
        norm_steps=int(compared.sum()),
    )
