"""The page of rules."""

from dpspec_recording.observers.own_rules import RULES
from generator.markdown import tidy

HEAD = """# Rules

`dpspec check` evaluates these rules on a recorded training. A rule that fires is a caution: the verdict stays, and the
exit code is 1 until the cause is gone or you accept the rule with `--accept NAME` (in a spec `training.accept`, with a
reason). `--select NAME` evaluates only some rules, `--ignore NAME` omits one, and `dpspec rules` lists all. Rules that
need the first step only also warn during the training, once. The table of
[mistakes](../explanation/mistakes.md#rules-and-tests) has the noticed mistake, the fix and the source of each rule.

A plugin adds rules with the hook `dpspec_rules`, which returns descriptors `dpspec.contract.rules.Rule`. Their code is
a subclass of `TrainingRule` in the same module, whose `kind` is the frozen dataclass of its facts; without one, its
facts are a mapping.
"""


def page() -> str:
    """A section for each rule: why its mistake matters."""
    return tidy("\n".join([HEAD, *(f"## {rule.name}\n\n{rule.why}\n" for rule in RULES)]))
