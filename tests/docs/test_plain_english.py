"""Prose has a budget per file of constructions that make a reader read a sentence twice. Budgets may only fall.

export PYTHONPATH=tests
python tests/docs/test_plain_english.py [PATH ...]    # every hit with its line and the advice
python tests/docs/test_plain_english.py --lower       # write the current counts, if they are lower, as the new budget
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import syntax

ROOT = Path(__file__).parents[2]
BUDGET = Path(__file__).with_name("plain_english.json")

#: Patterns and the advice for each.
ADVICE = {
    r"what (is|was|were|are|it|they|an|a|the|no|one|ran|each|every|nobody)": "use a noun: 'the executed run'",
    r"how (many|often|far|large|much)": "use a noun: 'the number of records'",
    r"so (many|much|few|large|far|long)": "name the number or the parameter",
    r"where (it|there|that|they|no|nothing|none|one|all|some|nobody)": "use 'if' or 'unless'",
    r"(told|tells|tell of|untold)": "name the agent: 'the backend reports'",
    r"(looked at|looks at|look at|a look|looks)": "inspected, observed",
    r"(speak|speaks|spoke|say|says|said|know|knows|known) of": "applies to, covers, reports",
    r"(stands?|stood|lies|rests?) (in|on|at|there|for|beside|with|between|alone)": "is, depends on, assumes",
    r"held against": "compared with, tested against",
    r"of (its|their|one's|your|somebody's|our) own": "custom, separate, the user's",
    r"(whoever|nobody|somebody|whatever|whichever)": "name the adversary, the user or the object",
    r"(anew|beside|alike|hardly|rightly|wrongly|elsewhere)": "again, next to, similar, external",
    r"(but for|as far as|as it is|as they are)": "except, as",
    r"(those of|that of|of which|of them)": "repeat the noun",
    r"(is none|are none|is no|are no|none where)": "use a positive statement or 'not a'",
    r"(left out|leaves out|leave out)": "omitted",
    r"(comes out|come out|goes on|came out)": "results in, continues",
    r"(asks for|is asked|asked for)": "requires, requests",
    r"(put to nothing|zeroed member)": "null record",
    r"the (least|most)": "the minimum, the maximum",
    r"(made of|made for|makes for)": "consists of, intended for",
    r"data sets?": "dataset",
    r"(planted|twin|luck|astray|mended)": "canary, canary-free run, shared randomness, misplaced, fixed",
}
_COMPILED = [(re.compile(rf"\b{pattern}\b", re.IGNORECASE), advice) for pattern, advice in ADVICE.items()]
_ANY = re.compile(rf"\b({'|'.join(ADVICE)})\b", re.IGNORECASE)

_FENCE = re.compile(r"```.*?```|<!--.*?-->|`[^`\n]*`", re.DOTALL)


#: The end of a literal and the begin of the next one, which hide a construction that both make.
_JOINT = re.compile(r"[\"']\s*[fr]{0,2}[\"']", re.IGNORECASE)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each piece of prose in a Python or Markdown file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, _FENCE.sub(lambda found: "\n" * found.group().count("\n"), source)
        return
    if all(found.group() == "is None" for found in _ANY.finditer(_JOINT.sub("", source))):  # of code
        return
    for node in syntax.walk(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= 4:
            yield node.lineno, node.value
    if any(_ANY.search(line.partition("#")[2]) for line in source.splitlines() if "#" in line):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):  # takes as long as all else
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def hits(path: Path) -> list[tuple[int, str, str]]:
    """All hits of a file as (line, text, advice)."""
    return [
        (line + text.count("\n", 0, match.start()), match.group(), advice)
        for line, text in prose(path)
        if _ANY.search(text)
        for pattern, advice in _COMPILED
        for match in pattern.finditer(text)
    ]


def files() -> list[Path]:
    """The product's modules, the documents that people write, and the pages of the repository."""
    modules = [path for folder in ("dpspec", "plugins") for path in (ROOT / folder).rglob("*.py")]
    written = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]
    return sorted([*modules, *written, ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def counts() -> dict[str, int]:
    """The number of hits of each file that has any, by its path from the repository's root."""
    found = {path.relative_to(ROOT).as_posix(): len(hits(path)) for path in files()}
    return {name: count for name, count in found.items() if count}


@pytest.mark.ci
def test_no_file_exceeds_its_budget() -> None:
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    above = {name: (count, budget.get(name, 0)) for name, count in counts().items() if count > budget.get(name, 0)}
    assert not above, (
        f"(hits, budget) of {above}; PYTHONPATH=tests python tests/docs/test_plain_english.py FILE lists the hits"
    )


def main(*arguments: str) -> None:
    if arguments == ("--lower",):
        old = json.loads(BUDGET.read_text(encoding="utf-8"))
        kept = {name: min(count, old.get(name, 0)) for name, count in counts().items()}
        BUDGET.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        return
    for path in map(Path, arguments) if arguments else files():
        for line, text, advice in hits(path):
            print(f"{path}:{line}: {text!r}: {advice}")


if __name__ == "__main__":
    main(*sys.argv[1:])
