"""The form of a fact that a folder states of its training, and its union over ranks or parts."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from dpspec_recording.folder.header import Header
from dpspec_recording.folder.merging import Across, joined

F = TypeVar("F")


class StatedFact(Generic[F]):
    """The properties of a fact by which a folder is read, and its ranks and parts are joined.

    Attributes:
        name: Of the fact, in the folder of the run.
        kind: The frozen dataclass of the fact, whose fields say how the facts of ranks and parts are joined; ``|
            None`` if some trainings do not show the fact. None if the steps of the folder hold all of it.
        of_adding_ranks: Whether only the ranks that add noise have the fact.
    """

    name: ClassVar[str]
    kind: ClassVar[Any] = None
    of_adding_ranks: ClassVar[bool] = False

    @classmethod
    def is_shown(cls, header: Header) -> bool:
        """Whether this kind of training shows the fact."""
        return True

    @classmethod
    def merge(cls, rows: Sequence[F], across: Across) -> F:
        """The fact of several ranks or parts that observed it: by default joined field by field."""
        return joined(rows, across)


#: The facts that a folder states; its readers get them from above, because each probe owns one.
StatedFacts: TypeAlias = Sequence[type[StatedFact[Any]]]
