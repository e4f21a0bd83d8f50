"""An invented play in the place of tiny_shakespeare."""

import random
from typing import Any

_TEXT = "the a night king of winter speaks softly and ROMEO: walks no more to house or sea"


class Text:
    """Text as TensorFlow's strings."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()

    def numpy(self) -> bytes:
        return self._bytes


class Plays(list[dict[str, Any]]):
    """Texts of a data set."""

    def take(self, count: int) -> "Plays":
        return Plays(self[:count])


def load(name: str, split: str) -> Plays:
    drawn = random.Random(len(name) + len(split))
    return Plays([{"text": Text(" ".join(drawn.choices(_TEXT.split(), k=600)))}])
