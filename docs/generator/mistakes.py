"""The page of mistakes: what dpspec finds, from the rules and faults, and texts that no observer states."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import dpspec_recording.judge
import dpspec_recording.observers
from dpspec.contract.rules import Rule
from dpspec_recording.observers.own_rules import RULES
from dpspec_recording.outcomes.faults import Fault
from generator.markdown import cell, first_sentence, table

_TEXT = Path(__file__).with_name("mistakes.md.tmpl")

_HEAD = ("mistake", "seen as", "what to do", "made in")

_ISSUE = re.compile(r"https://github\.com/[^/]+/(?P<name>[^/]+)/(?P<kind>issues|pull)/(?P<number>\d+)")
_FILE = re.compile(r"https://github\.com/[^/]+/(?P<name>[^/]+)/(?:blob|tree)/.*?(?P<file>[^/]+)")
_PAPER = re.compile(r"https://arxiv\.org/abs/(?P<number>[\d.]+)")


def page() -> str:
    """The text of ``mistakes.md.tmpl`` beside this module, with the table of all rules and faults."""
    rows = [*map(_of_rule, RULES), *map(_of_fault, faults())]
    return _TEXT.read_text(encoding="utf-8").replace("{{observers}}", "\n".join(table(_HEAD, rows)))


def faults() -> Iterator[Fault]:
    """The faults of all probes and judges, each once."""
    listed: set[str] = set()
    for package in (dpspec_recording.observers, dpspec_recording.judge):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(import_module(module.name)).values():
                if isinstance(value, Fault) and value.name not in listed:
                    listed.add(value.name)
                    yield value


def _of_rule(rule: Rule) -> tuple[str, ...]:
    return _sentence(rule.summary), f"[`{rule.name}`](../reference/rules.md#{rule.name})", cell(rule.fix), _link(rule)


def _of_fault(fault: Fault) -> tuple[str, ...]:
    return _sentence(fault.title), f"DEVIATES: `{fault.condition}`", cell(first_sentence(fault.advice)), _link(fault)


def _sentence(text: str) -> str:
    return cell(text[:1].upper() + text[1:] if text.split()[0].isalpha() else text)


def _link(observer: Rule | Fault) -> str:
    """A link to the incident; the source itself if it is none."""
    source = observer.source
    if found := _ISSUE.fullmatch(source):
        text = f"{found['name']} {'PR ' if found['kind'] == 'pull' else ''}#{found['number']}"
    elif found := _FILE.fullmatch(source):
        text = f"{found['name']}, `{found['file']}`"
    elif found := _PAPER.fullmatch(source):
        text = f"arXiv {found['number']}"
    else:
        return source
    return f"[{text}]({source})"
