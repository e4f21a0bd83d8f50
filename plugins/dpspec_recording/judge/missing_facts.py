"""Facts that the recorder always notes, and an edited recording lacks: without them, a check would be omitted."""

from collections.abc import Iterator

from dpspec.contract import Assumption
from dpspec_recording.judge.conditions import stated
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.judge.rules import facts_of_parts
from dpspec_recording.rules.builtin import RULES

#: The condition that each fact tests, and the subject of the omitted check.
_OF_FACTS = {
    "updates": ("update-rule", "whether each update is the one that the optimizer computes"),
    "restated": ("update-rule", "whether the state of the optimizer changed between its steps"),
    "passes": ("gradient-parameters", "the parameters of the forward passes"),
    "meddled": ("update", "whether gradients changed between the noise and the update"),
    "maps": ("update", "maps of the noisy gradient"),
    "sums": ("clipping", "whether the clipped sums changed before the noise"),
    "clip_limits": ("clipping", "whether gradients are clipped to the norm that scales the noise"),
    "ghost": ("clipping", "the gradients of ghost clipping"),
    "adaptive": ("clipping", "the noisy counts of adaptive clipping"),
    "replays": ("unmixed-batches", "the replayed steps, or why no step was replayed"),
    "seeds": ("secret-randomness", "whether two generators have one seed"),
    "noise": ("noise-law", "the distribution of the noise"),
    "drawn_batches": ("unused-batches", "the number of drawn batches"),
    "passed_over": ("unused-batches", "the number of unused batches within passes"),
    "history": ("accounting", "the history of the accountant"),
    "rules": ("one-record", "the cautions of the rules"),
}


def missing_facts(run: RecordedRun) -> Iterator[Assumption]:
    """Yield an open assumption for each fact that a rank or a part lacks; none for a run without an end.

    An edited number of updates is below the number of audited steps.
    """
    end, header = run.end, run.header
    if end is None:
        return
    for name in end.lacking:
        yield _missing(name)
    if end.updates is not None and end.updates.steps < end.audits.steps * max(1, header.world):
        yield _missing("updates")
    unnoted = [rule.name for rule in RULES if not all(rule.name in facts for facts in facts_of_parts(end.rules))]
    if unnoted and "rules" not in end.lacking:
        yield _missing("rules", f": {', '.join(unnoted)}")


def _missing(fact: str, detail: str = "") -> Assumption:
    condition, subject = _OF_FACTS[fact]
    text = f"the recording does not show {subject}{detail}: record again with this version of dpspec"
    return stated(condition, status="unchecked", text=text)
