"""JSON and Markdown: complete, redacted, and harmless whatever the names are."""

import dataclasses
import re
from pathlib import Path

import pytest

from dpspec.reporters import markdown


def test_golden(result):
    assert markdown.render(result) == (Path(__file__).parent / "golden" / "report.md").read_text("utf-8")


def unfolded(text):
    return re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)


def renamed(result, count, **changes):
    audit = dataclasses.replace(result.audits[0], **changes)
    return dataclasses.replace(result, audits=tuple(dataclasses.replace(audit, name=f"a-{n}") for n in range(count)))


def as_wished(audit):
    verdicts = tuple(dataclasses.replace(verdict, expected=True, verdict="proved") for verdict in audit.verdicts)
    return {"verdicts": verdicts, "conformance": dataclasses.replace(audit.conformance, expected=True)}


@pytest.mark.parametrize("count", [1, 60])
def test_markdown_shows_at_most_a_screen_where_all_is_well(result, count):
    text = unfolded(markdown.render(renamed(result, count, **as_wished(result.audits[0]))))
    assert "Not as expected" not in text
    assert len([line for line in text.split("\n") if line]) <= 40
    assert "## Limits" in text


def test_markdown_shows_what_is_not_as_expected_first_and_in_full(result):
    good = renamed(result, 40, **as_wished(result.audits[0]))
    (wrong, *others) = as_wished(result.audits[0])["verdicts"]
    verdicts = (dataclasses.replace(wrong, expected=False, reason="This is the reason."), *others)
    bad = dataclasses.replace(result.audits[0], name="bad", **{**as_wished(result.audits[0]), "verdicts": verdicts})
    text = unfolded(markdown.render(dataclasses.replace(good, audits=(*good.audits, bad))))
    lines = [line for line in text.split("\n") if line]
    assert lines[3] == "## Not as expected: bad"
    assert lines[4] == f"- **{wrong.verdict}** {wrong.claim}: This is the reason."
    assert sum(line.startswith("| **") for line in lines) == 1


#: The maximum length of a comment on GitHub.
COMMENT = 65_536


@pytest.mark.ci
def test_markdown_of_a_folder_fits_into_a_comment_and_says_what_it_omits(result):
    wished = as_wished(result.audits[0])
    verdicts = wished["verdicts"] * 3
    many = renamed(result, 200, **{**wished, "verdicts": verdicts})
    first, *others = many.audits
    failing = dataclasses.replace(
        others[-1], name="fails", verdicts=(dataclasses.replace(verdicts[0], expected=False),)
    )
    text = markdown.render(dataclasses.replace(many, audits=(first, *others[:-1], failing)))
    assert len(text) < COMMENT
    assert f"{199 * len(verdicts)} claims as expected, the first 150 listed" in text
    shown = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert shown[0] == "fails"  # an engineer needs the numbers of failures first
    assert f"have the numbers and tests of {200 - len(shown)} further audits" in text
    assert 200 > len(shown) > 1


def test_markdown_of_one_audit_has_all_numbers(result):
    assert len(re.findall(r"^### ", markdown.render(result), re.MULTILINE)) == len(result.audits)
