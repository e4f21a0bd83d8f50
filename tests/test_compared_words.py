"""Code decides by names, fields and numbers: a sentence can change without a verdict.

python tests/test_compared_words.py        # every expression that compares or searches words of the house
"""

import ast
from pathlib import Path

import pytest
from support import syntax

ROOT = Path(__file__).parents[1]

#: Attributes for people. Code may print them, and compare no part of them.
WORDS = {"title", "test", "note", "remark", "text", "advice", "reason", "fix", "why", "incomplete"}

#: Methods and functions that search in texts.
SEARCHES = {"startswith", "endswith", "removesuffix", "removeprefix", "partition", "rpartition", "find", "index"}
SEARCHES |= {"split", "rsplit", "match", "search", "fullmatch", "casefold"}

#: Expressions that only choose words for people, or whose attribute is a name of code.
WORDING = {
    # The keys of the first screen are its own titles.
    "title == highest.title",
    "highest.title not in ('', title)",
    # The attribute of an attack method is a reference to its code.
    "method.test.partition(':')",
    # Layout: a name breaks at underscores, and Markdown quotes backticks.
    "''.join((span.text for span in spans(column))).split('_')",
    "'`' not in span.text",
    # Omits words that the sentence beside them has, or shortens them.
    "verdict.reason.removeprefix('Not proved: ')",
    "verdict.text.split()",
    "re.split(';|\\\\. ', stated.text, maxsplit=1)",
}


def compared_words(source: str) -> list[str]:
    """Return the expressions that compare attributes for people, or search in them."""

    def of_words(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Attribute) and part.attr in WORDS for part in ast.walk(node))

    found = []
    for node in syntax.walk(source):
        compared = False
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            is_none = all(isinstance(value, ast.Constant) and value.value is None for value in node.comparators)
            compared = not is_none and any(isinstance(side, ast.Attribute) and side.attr in WORDS for side in sides)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            compared = any(of_words(part) for part in (node.func.value, *node.args))
        if compared:
            found.append(ast.unparse(node))
    return found


def of_house() -> dict[str, list[str]]:
    modules = [module for top in ("dpspec", "plugins") for module in sorted((ROOT / top).rglob("*.py"))]
    found = {str(m.relative_to(ROOT)): compared_words(m.read_text(encoding="utf-8")) for m in modules}
    return {module: expressions for module, expressions in found.items() if expressions}


@pytest.mark.ci  # it reads all modules
def test_no_code_decides_by_words() -> None:
    found = {expression for expressions in of_house().values() for expression in expressions}
    assert found - WORDING == set()
    assert WORDING - found == set(), "remove the exceptions that are gone"


@pytest.mark.parametrize(
    "line",
    ["finding.reason == GONE", "check.note.startswith(planned)", "'x' in rule.text", "re.match(words, check.test)"],
)
def test_comparisons_of_words_are_found(line: str) -> None:
    assert compared_words(line) == [line]


@pytest.mark.parametrize("line", ["check.note or check.test", "f'{check.test}'", "check.test is None", "a.kind == 'x'"])
def test_printed_words_are_no_comparison(line: str) -> None:
    assert compared_words(line) == []


if __name__ == "__main__":
    for module, expressions in of_house().items():
        print(*(f"{module}: {expression}" for expression in expressions), sep="\n")
