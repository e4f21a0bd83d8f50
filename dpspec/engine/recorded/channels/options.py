"""The options of a recorded training: their first values, and what changed them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dpspec.engine.results.decimals import nearest
from dpspec.recording.folder.step_record import MOST_OPTIONS, UNREAD, OptionChange

#: Options of the private sum and of the sampler; all others belong to the optimizer's parameter groups.
PRIVATE = ("noise_multiplier", "clip_norm", "divisor", "loss_reduction", "rate")

#: Names that users give to options, where they differ.
_NAMES = dict.fromkeys(("lr", "swa_lr", "initial_lr", "max_lr", "min_lr"), "learning_rate")
_NAMES |= dict.fromkeys(("base_momentum", "max_momentum"), "momentum")

#: Schedulers that call a function of the script.
_CALLING = {"LambdaLR", "MultiplicativeLR", "CyclicLR", "LambdaNoise", "LambdaGradClip"}


@dataclass
class Unexplained:
    """Changes of an option that no known scheduler made.

    Attributes:
        step: The first step that they affect.
        groups: The parameter groups that change there.
        steps: The number of steps that they affect first.
    """

    step: int
    groups: tuple[int, ...]
    steps: int = 1


class OptionHistory:
    """What the steps of a recording say of options, in memory that does not grow with the number of steps."""

    def __init__(self) -> None:
        self.first: dict[str, OptionChange] = {}
        self.unexplained: dict[str, Unexplained] = {}
        self.unread: dict[str, str] = {}
        self.schedulers: set[str] = set()
        self._last: dict[str, OptionChange] = {}

    def add(self, step: int, changes: Mapping[str, OptionChange]) -> None:
        """The changes before one more step."""
        for name, change in changes.items():
            if name not in self._last and len(self._last) >= MOST_OPTIONS:
                continue
            words = [value for value in change.values if isinstance(value, str) and value.startswith(UNREAD)]
            if words:
                self.unread.setdefault(name, words[0].removeprefix(UNREAD))
            if step == 1 and change.by:
                self.first[name] = change
            elif change.by:
                self.schedulers.add(change.by)
            elif name in self.unexplained:
                self.unexplained[name].steps += 1
            else:
                self.unexplained[name] = Unexplained(step, _groups(self._last.get(name), change))
            self._last[name] = change

    @property
    def calling(self) -> list[str]:
        """Schedulers that changed an option by a function of the script."""
        return sorted(self.schedulers & _CALLING)

    def doubts(self, public: Collection[str], *, private: bool) -> Iterator[str]:
        """A clause for each option whose changes nothing explains, and that the user does not declare public.

        Args:
            public: Names that the user declares public.
            private: Whether the options of the private sum are asked for, or those of the optimizer.
        """
        for name, kind in self.unread.items():
            if (name in PRIVATE) is private and public_name(name) not in public:
                yield f"{name} is of type {kind}, whose arithmetic the recorder does not know: use a float or a tensor"
        for name, one in self.unexplained.items():
            own = public_name(name)
            if (name in PRIVATE) is not private or own in public:
                continue
            groups = "" if private or not one.groups else f" of parameter group {', '.join(map(str, one.groups[:5]))}"
            times = f" (the first of {one.steps} such steps)" if one.steps > 1 else ""
            advice = f"set it by a scheduler of torch or Opacus, or declare it by --public {own}"
            yield f"{name}{groups} changed before step {one.step}{times}, and no known scheduler set it: {advice}"

    def listed(self) -> str:
        """The first values of the optimizer's numeric options, by name."""
        parts = []
        for name, change in self.first.items():
            values = {value for value in change.values if type(value) is float}
            if name not in (*PRIVATE, "parameters") and values:
                parts.append(f"{name} {' and '.join(nearest(value) for value in sorted(values)[:4])}")
        return ", ".join(parts[:20])


def public_name(option: str) -> str:
    """The name by which a user declares an option public: ``learning_rate`` for ``lr``, ``betas`` for ``betas[0]``."""
    name = option.partition("[")[0]
    return _NAMES.get(name, name)


def _groups(before: OptionChange | None, after: OptionChange) -> tuple[int, ...]:
    old = before.values if before is not None else ()
    return tuple(i for i, value in enumerate(after.values) if i >= len(old) or repr(old[i]) != repr(value))
