"""Edits of an HTML page: its text, attributes, markup, styles, scripts, comments, drawings and generator."""

import random
import re
from collections.abc import Iterator

from dpspec.reporters.read_results import embedded, extract
from support.forger.leaves import Edit, sample

_STYLES = (
    '.verdict.open{font-size:0}.verdict.open::after{content:"proved";font-size:1rem}',
    '.verdict.refuted{font-size:0}.verdict.refuted::after{content:"open";font-size:1rem}',
    ".unexpected{display:none}",
    "#limits-h,#limits-h+ul{display:none}",
    ".warning{visibility:hidden}",
    "body{direction:rtl}",
)

_INSERTS = (
    "<!-- all is well -->",
    "<p>All claims are proved.</p>",
    '<svg viewBox="0 0 60 10"><text y="8">proved</text></svg>',
    "<style>.verdict{color:green}</style>",
    "<script>document.title='proved'</script>",
    '<img alt="proved" src="data:image/png;base64,AAAA">',
    "&#8203;",
    "<base href=x>",
    " ",
)

_TAG = re.compile(r"<[a-z][^<>]*>")
_ATTRIBUTE = re.compile(r' ([a-z-]+)="([^"<>]*)"')
_TEXT = re.compile(r">([^<>]*[^<>\s][^<>]*)<")


def pages(page: str, chance: random.Random, most: int) -> Iterator[Edit]:
    yield from (Edit(what, (), edited) for what, edited in _edits(page, chance, most) if edited != page)


def _edits(page: str, chance: random.Random, most: int) -> Iterator[tuple[str, str]]:
    tags, attributes, texts = (list(found.finditer(page)) for found in (_TAG, _ATTRIBUTE, _TEXT))
    for match in sample(texts, chance, most):
        for new in ("proved", "", f"{match[1]} or less", re.sub(r"\d", "1", match[1], count=1)):
            yield f"the text {match[1]!r:.40}", _cut(page, match.span(1), new)
    for match in sample(attributes, chance, most):
        yield f"the attribute {match[1]}", _cut(page, match.span(2), f"{match[2]}x")
        yield f"the attribute {match[1]} is gone", _cut(page, match.span(), "")
    for match in sample(tags, chance, most):
        end = match.end() - 1
        for attribute in (" hidden", ' style="display:none"', ' class="verdict proved"', " onclick=x"):
            yield f"{attribute} in {match[0]:.40}", _cut(page, (end, end), attribute)
        for insert in _INSERTS:
            yield f"{insert} behind {match[0]:.40}", _cut(page, (match.end(), match.end()), insert)
        yield f"{match[0]:.40} is gone", _cut(page, match.span(), "")
    for style in _STYLES:
        yield f"the style {style:.40}", page.replace("</style>", f"{style}</style>", 1)
    for _ in range(most):
        start = chance.randrange(len(page))
        yield "a character is gone", _cut(page, (start, start + 1), "")
        yield "a character is another", _cut(page, (start, start + 1), "0" if page[start] != "0" else "1")
    written = re.search(r'<meta name="generator" content="([^"]*)">', page)
    if written is not None:
        for writer in ("dpspec 0.0.1", "", "dpspec", f"{written[1]}.1", "Mozilla"):
            other = page.replace(written[0], f'<meta name="generator" content="{writer}">')
            yield f"written by {writer!r}", other
            yield f"written by {writer!r}, with a style", other.replace("</style>", "*{color:red}</style>", 1)
        yield "without a generator", page.replace(written[0], "")
    json = extract(page)
    json_end = json.rindex('"schema"')
    for what, inserted in (("a space in the JSON", " "), ("a repeated key", '"confidence": 0.5, ')):
        yield what, page.replace(embedded(json), embedded(_cut(json, (json_end, json_end), inserted)))
    yield "text before the page", f" {page}"
    yield "text after the page", f"{page}<p>proved</p>"


def _cut(page: str, span: tuple[int, int], new: str) -> str:
    return page[: span[0]] + new + page[span[1] :]
