"""The schema of a decorated function follows from its signature."""

from typing import Literal, Optional

import pytest

import dpspec
from dpspec.contract.parts import PARTS, Part


def part_of(function) -> Part:
    (part,) = getattr(function, PARTS)
    return part


def test_the_schema_follows_from_types_and_defaults():
    @dpspec.model("net")
    def net(
        facts,
        rate: float,
        *,
        width: int = 64,
        bias: bool = True,
        norm: Literal["group", "layer"] = "group",
        hidden: list[int] = [8, 4],  # noqa: B006 - as users write it
        sizes: tuple[float, ...] = (),
        scale: Optional[float] = None,  # noqa: UP045 - as users write it
        cap: int | None = None,
        name="x",
        limit: float = float("inf"),
    ):
        """A net.

        Args:
            width: The number of hidden units.
        """

    part = part_of(net)
    assert part.summary == "A net."
    assert part.schema["required"] == ["rate"]
    assert part.schema["additionalProperties"] is False
    properties = {key: {**value} for key, value in part.schema["properties"].items()}
    descriptions = {key: value.pop("description") for key, value in properties.items()}
    assert properties == {
        "rate": {"type": "number"},
        "width": {"type": "integer", "default": 64},
        "bias": {"type": "boolean", "default": True},
        "norm": {"enum": ["group", "layer"], "default": "group"},
        "hidden": {"type": "array", "items": {"type": "integer"}, "default": [8, 4]},
        "sizes": {"type": "array", "items": {"type": "number"}, "default": []},
        "scale": {"type": "number"},
        "cap": {"type": "integer"},
        "name": {"type": "string", "default": "x"},
        "limit": {"type": "number"},
    }
    assert descriptions["width"] == "The number of hidden units."
    assert all(descriptions.values())


def test_options_are_converted_to_the_types_of_parameters():
    @dpspec.model("net")
    def net(facts, *, width: int = 64, rate: float = 1.0, hidden: list[int] = [8], sizes: tuple[float, ...] = ()):  # noqa: B006
        return facts, width, rate, hidden, sizes

    # YAML's 64.0 is a JSON integer, and frozen options hold tuples.
    value = part_of(net).call({"width": 64.0, "rate": 2, "hidden": (3, 4.0), "sizes": (1,), "other": 7}, "facts")
    assert repr(value) == "('facts', 64, 2.0, [3, 4], (1.0,))"
    assert part_of(net).call({}, "facts") == ("facts", 64, 1.0, [8], ())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("facts, *, width: dict = None", "parameter 'width' of net.. needs a type"),
        ("facts, *, width: int | str = 1", "needs a type"),
        ("facts, *, width: list[dict] = None", "needs a type"),
        ("facts, **options", "parameter 'options' of net.. cannot be a key of a spec"),
        ("", "net.. needs a first parameter"),
    ],
)
def test_other_signatures_are_refused(parameters, message):
    names = {}
    exec(f"def net({parameters}): pass", names)
    with pytest.raises(TypeError, match=message):
        dpspec.model("net")(names["net"])


def test_a_loss_receives_outputs_and_targets():
    @dpspec.loss("power")
    def power(outputs, targets, *, gamma: float = 2.0):
        return outputs, targets, gamma

    assert part_of(power).call({"gamma": 1}, "outputs", "targets") == ("outputs", "targets", 1.0)
    with pytest.raises(TypeError, match="needs parameters for outputs and targets"):
        dpspec.loss("one")(lambda outputs: outputs)


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(TypeError, match=r'write @dpspec.score\("name"\)'):

        @dpspec.score
        def mine(observed):
            pass


def test_the_folder_of_the_spec_is_optional():
    @dpspec.dataset("rows")
    def rows(folder, *, count: int):
        pass

    @dpspec.dataset("more-rows", classes=3)
    def more_rows(count: int):
        pass

    assert (part_of(rows).takes_folder, part_of(more_rows).takes_folder) == (True, False)
    assert list(part_of(rows).readers) == list(part_of(more_rows).readers) == ["count"]
