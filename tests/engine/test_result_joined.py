"""Results joined for one report: each can be taken out as it was, and was judged as the family that it was."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import counting
from support.results import audit, result

from dpspec.contract import Check, FrozenMap
from dpspec.engine.redact import redact
from dpspec.engine.results import codec
from dpspec.engine.results.codec import require_sound
from dpspec.engine.results.result import Result, apart, join, sources, split
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ResultError

NAMES = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3, unique=True)


@st.composite
def several(draw: st.DrawFn) -> list[tuple[str, Result]]:
    return [
        (
            f"{i}.json",
            result(
                *(audit(name) for name in draw(NAMES)),
                confidence=draw(st.sampled_from([0.9, 0.95, 0.99])),
                created=f"2026-01-{draw(st.integers(10, 28))}T00:00:00+00:00",
                environment=FrozenMap({"python": draw(st.sampled_from(["3", "4"])), "command": ["dpspec", str(i)]}),
                notes=draw(st.sampled_from([(), ("a note",)])),
            ),
        )
        for i in range(draw(st.integers(2, 4)))
    ]


@given(several())
def test_what_was_joined_can_be_taken_apart(results: list[tuple[str, Result]]) -> None:
    joined = codec.load(codec.dump(join(results)))
    assert list(split(joined)) == [one for _, one in results]
    names = [one.name for one in joined.audits]
    assert len(set(names)) == len(names)
    assert [one.name for part in apart(joined) for one in part.audits] == names
    assert sources(joined) == tuple(source for source, one in results for _ in one.audits)
    assert join([("again.json", joined)]) is joined
    both = join([("x.json", joined), ("y.json", results[0][1])])
    assert list(split(both)) == [*(one for _, one in results), results[0][1]]
    assert both.parts[0].source == "x.json: 0.json"


def test_only_names_that_collide_get_their_file() -> None:
    joined = join([("a.json", result(audit("same"), audit("only"))), ("b.json", result(audit("same")))])
    assert [one.name for one in joined.audits] == ["same (a.json)", "only", "same (b.json)"]


@pytest.mark.parametrize(
    ("stated", "together", "said"),
    [
        ((0.95, 0.95), 0.9, "at confidence 0.9."),
        ((0.95, 0.99, 0.9), 0.84, "at confidence 0.84."),
        ((0.5, 0.5), 0.0, "at no confidence that could be stated."),
        ((0.4, 0.4), 0.0, "at no confidence that could be stated."),
    ],
)
def test_errors_of_families_add_up(stated: tuple[float, ...], together: float, said: str) -> None:
    joined = join([(f"{i}.json", result(audit(f"a{i}"), confidence=c)) for i, c in enumerate(stated)])
    assert joined.confidence == together
    assert joined.notes[0].endswith(said)
    require_sound(joined)


def test_what_all_share_is_told_once_and_commands_stay_apart() -> None:
    def made(python: str, command: str) -> Result:
        return result(environment=FrozenMap({"python": python, "dpspec": "1", "command": [command]}), notes=("n",))

    joined = join([("a.json", made("3", "a")), ("b.json", made("4", "b"))])
    assert joined.environment == FrozenMap({"dpspec": "1"})
    assert joined.notes[1:] == ("n",)


def test_redaction_counts_the_tests_of_each_family() -> None:
    """A check that speaks of the rows is blurred by how many tests its own invocation made, not the whole page."""

    def checks(number: int, privacy: str) -> Result:
        check = Check(
            assumption="sampling", test="binomial", p_value=1e-7, observed="reported", measured=0.05, privacy=privacy
        )
        return result(audit(f"a{number}", checks=(check,) * number))

    parts = [("a.json", checks(1, "data-dependent")), ("b.json", checks(40, "public"))]
    joined = redact(join(parts))
    assert [one for part in split(joined) for one in part.audits] == [
        one for _, part in parts for one in redact(part).audits
    ]
    assert redact(joined) == joined
    as_one_family = redact(dataclasses.replace(join(parts), parts=()))
    assert as_one_family.audits[0] != joined.audits[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: dataclasses.replace(r, parts=r.parts[:1]),
        lambda r: dataclasses.replace(r, parts=(dataclasses.replace(r.parts[0], confidence=1.5), r.parts[1])),
        lambda r: dataclasses.replace(r, parts=(), confidence=0.0),
    ],
)
def test_a_joined_result_that_makes_no_sense_is_refused(change) -> None:
    joined = join([("a.json", result()), ("b.json", result())])
    with pytest.raises(ResultError):
        codec.load(codec.dump(change(joined)))


class TestVerify:
    @pytest.fixture
    def joined(self, tmp_path) -> Result:
        store = Store(tmp_path / "store")
        made = [
            run(counting.load(tmp_path, *over), counting.catalog(), store=store)
            for over in ([], ["claims.held.epsilon=0.3"])
        ]
        return join([("a.json", made[0]), ("b.json", made[1])])

    def test_every_part_follows_from_itself(self, joined: Result) -> None:
        assert [one.name for one in joined.audits] == ["coin (a.json)", "coin (b.json)"]
        assert verify(codec.load(codec.dump(joined)), counting.catalog()) == ()

    def test_what_was_edited_is_named_as_it_is_shown(self, joined: Result) -> None:
        second = joined.audits[1]
        verdicts = (dataclasses.replace(second.verdicts[0], upper=0.1), *second.verdicts[1:])
        edited = dataclasses.replace(joined, audits=(joined.audits[0], dataclasses.replace(second, verdicts=verdicts)))
        (found,) = verify(edited, counting.catalog())
        assert (found.audit, found.what) == ("coin (b.json)", "verdicts[0].upper")

    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"confidence": 0.95}, "confidence"),
            ({"notes": ("judged together",)}, "notes[0]"),
            ({"created": "2020-01-01"}, "created"),
        ],
    )
    def test_what_is_said_of_the_whole_follows_from_the_parts(self, joined, changes, what) -> None:
        (found,) = verify(dataclasses.replace(joined, **changes), counting.catalog())
        assert found.what == what
