"""The rules that observe one training: their hooks, their facts, and their warnings during the training."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, cast

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.registry.loader import load_catalog, resolve
from dpspec_recording.notices import notice

#: The run in a warning at the first step.
_FIRST_STEP = RuleRun(own_loop=False, steps=1, delta=1e-5)


def code_of(rule: Rule) -> type[TrainingRule]:
    return cast("type[TrainingRule]", resolve(rule.code))


def installed() -> tuple[Rule, ...]:
    """The rules of dpspec and of plugins."""
    try:
        catalog = load_catalog()
    except Exception as error:
        notice(f"dpspec.record: rules are off: {type(error).__name__}: {error}")
        return ()
    return tuple(offered.provider for offered in catalog.rules.values())


class ObservedRules:
    """The observers of one training. An exception of a rule ends this rule, never the training."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: dict[str, tuple[Rule, TrainingRule]] = {}
        self._failed: dict[str, str] = {}
        self._at_steps: list[tuple[Rule, TrainingRule]] = []
        for rule in rules:
            with self._guarded(rule):
                self._rules[rule.name] = rule, code_of(rule)()

    def start(self, setup: RuleSetup) -> None:
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                observer.start(setup)
        self._at_steps = [
            (rule, observer)
            for rule, observer in self._rules.values()
            if type(observer).after_step is not TrainingRule.after_step
        ]

    def after_step(self, step: RuleStep) -> None:
        for rule, observer in self._at_steps:
            if rule.name in self._rules:
                try:
                    observer.after_step(step)
                except Exception as error:
                    self._fail(rule, error)
        if step.number == 1:
            for rule, observer in [*self._rules.values()]:
                with self._guarded(rule):
                    if observer.early and (text := observer.caution(observer.facts(), _FIRST_STEP)):
                        notice(f"dpspec, rule {rule.name}: {text} {rule.fix}", UserWarning)

    def stop(self) -> None:
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                observer.stop()

    def facts(self) -> dict[str, Any]:
        """By rule, its facts; an ``error`` for a rule that failed."""
        facts_by_rule: dict[str, Any] = {}
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                facts_by_rule[rule.name] = dict(observer.facts())
        return {**facts_by_rule, **{name: {"error": error} for name, error in self._failed.items()}}

    def fired(self, run: RuleRun) -> tuple[str, ...]:
        """The names of the rules that give a caution on the facts until now."""
        facts, names = self.facts(), list[str]()
        for rule, observer in [*self._rules.values()]:
            with self._guarded(rule):
                names += [rule.name] if observer.caution(facts[rule.name], run) else []
        return tuple(names)

    @contextlib.contextmanager
    def _guarded(self, rule: Rule) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._fail(rule, error)

    def _fail(self, rule: Rule, error: Exception) -> None:
        self._failed[rule.name] = f"{type(error).__name__}: {error}"[:300]
        failed = self._rules.pop(rule.name, None)
        if failed is not None:
            with self._guarded(rule):
                failed[1].stop()
