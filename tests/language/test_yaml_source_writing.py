"""What ``show`` prints reads back as the same values, whatever they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpspec.language.tree import plain
from dpspec.language.yaml_source import read_yaml, to_yaml

TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\ufeff\ufffe\uffff"), max_size=12
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False).map(lambda x: x + 0.0),
    TEXTS,
    st.sampled_from(
        ["no", "null", "1e-6", "1e5", "010", "0x1f", "~", "true", "-", "- a", "a: b", "#", "<<", ".5", "=", ""]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=12,
)


def read_back(text: str) -> object:
    source = read_yaml(text, "shown.yaml")
    assert not source.diagnostics, source.diagnostics
    return plain(source.root)


@given(st.dictionaries(TEXTS.filter(lambda key: key != "<<"), VALUES, min_size=1, max_size=4))
def test_round_trip(document):
    assert repr(read_back(to_yaml(document))) == repr(document)


def test_layout():
    document = {
        "dpspec": 1,
        "mechanism": {"kind": "group", "sampling": {"scheme": "poisson", "rate": 0.01}},
        "claims": [{"id": "a", "delta": 1e-06}, {"id": "no", "points": [[1, 2], []], "more": {}}],
        "sizes": [1, 2],
    }
    assert to_yaml(document) == (
        "dpspec: 1\n"
        "mechanism:\n"
        "  kind: group\n"
        "  sampling:\n"
        "    scheme: poisson\n"
        "    rate: 0.01\n"
        "claims:\n"
        "- id: a\n"
        "  delta: 1.0e-06\n"
        "- id: 'no'\n"
        "  points:\n"
        "  - [1, 2]\n"
        "  - []\n"
        "  more: {}\n"
        "sizes: [1, 2]\n"
    )
    assert read_back(to_yaml(document)) == document


def test_comments_stand_behind_values():
    text = to_yaml({"a": {"b": 1}, "c": [{"d": 2}]}, lambda path: ".".join(map(str, path)))
    assert [line.split("  # ")[1] for line in text.splitlines()] == ["a", "a.b", "c", "c.0.d"]
    assert read_back(text) == {"a": {"b": 1}, "c": [{"d": 2}]}
