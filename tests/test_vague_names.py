"""Each package has a budget of bindings whose names do not say what they hold. Budgets may only fall.

python tests/test_vague_names.py [PATH ...]    # every vague name with its line
python tests/test_vague_names.py --lower       # write the current counts, if they are lower, as the new budget
"""

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import syntax

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_name("vague_names.json")

_WORDS = (
    "apart asked at each every found given held here kept known likely made more near of one other others own parts "
    "place places rest room seen some thing things told wanted what why words"
)
VAGUE = frozenset(_WORDS.split())


def bindings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each assigned variable and parameter of a file."""
    for node in syntax.walk(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def vague(path: Path) -> list[tuple[int, str]]:
    return [(line, name) for line, name in bindings(path) if name.lstrip("_") in VAGUE]


def counts() -> dict[str, int]:
    """The number of vague names by package: the first two folders of a file's path."""
    total: Counter[str] = Counter()
    for folder in ("dpspec", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            total["/".join(path.relative_to(ROOT).parts[:2])] += len(vague(path))
    return {package: count for package, count in sorted(total.items()) if count}


@pytest.mark.ci
def test_no_package_exceeds_its_budget() -> None:
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    above = {name: (count, budget.get(name, 0)) for name, count in counts().items() if count > budget.get(name, 0)}
    assert not above, f"(names, budget) of {above}; python tests/test_vague_names.py PATH lists them"


def main(*arguments: str) -> None:
    if arguments == ("--lower",):
        old = json.loads(BUDGET.read_text(encoding="utf-8")) if BUDGET.exists() else counts()
        lower = {name: min(count, old.get(name, 0)) for name, count in counts().items()}
        BUDGET.write_text(json.dumps(lower, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        return
    for path in map(Path, arguments) if arguments else sorted((ROOT / "dpspec").rglob("*.py")):
        for line, name in vague(path):
            print(f"{path}:{line}: {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
