"""The changes of the options of a recorded training, and those whose values a record may have chosen."""

from collections.abc import Iterator, Mapping

from dpspec_recording.folder.events import MOST_OPTIONS, RAND_ON_EMPTY, OptionChange, Unread
from dpspec_recording.outcomes.issue import Issue, doubted

#: Options of the private sum and of the sampler. All others belong to the optimizer's parameter groups.
_PRIVATE = ("noise_multiplier", "clip_norm", "divisor", "loss_reduction", "rate", RAND_ON_EMPTY)

#: Option names of torch, and the names under which users declare them public.
_NAMES = dict.fromkeys(("lr", "swa_lr", "initial_lr", "max_lr", "min_lr"), "learning_rate")
_NAMES |= dict.fromkeys(("base_momentum", "max_momentum"), "momentum")

#: Schedulers that call a function of the script.
_CALLING = {"LambdaLR", "MultiplicativeLR", "CyclicLR", "LambdaNoise", "LambdaGradClip"}


class OptionHistory:
    """First values and changes of the options of a recorded training, in memory independent of the number of steps.

    unexplained: by option, changes that no known scheduler made: the first affected step, the parameter groups that
    change there, and the number of affected steps. unread: by option, the type of values that the recorder cannot read.
    fills_empty: whether Opacus' loader replaced empty batches by random rows at any step.
    """

    def __init__(self) -> None:
        self.first: dict[str, OptionChange] = {}
        self.unexplained: dict[str, tuple[int, tuple[int, ...], int]] = {}
        self.unread: dict[str, str] = {}
        self.schedulers: set[str] = set()
        self.fills_empty = False
        self._last: dict[str, OptionChange] = {}

    def add(self, step: int, changes: Mapping[str, OptionChange]) -> None:
        """Add the changes before a step."""
        for name, change in changes.items():
            if name not in self._last and len(self._last) >= MOST_OPTIONS:
                continue
            self.fills_empty = self.fills_empty or (name == RAND_ON_EMPTY and any(change.values))
            for value in change.values:
                if isinstance(value, Unread):
                    self.unread.setdefault(name, value.kind)
            if step == 1 and change.by:
                self.first[name] = change
            elif change.by:
                self.schedulers.add(change.by)
            else:
                old = self._last[name].values if name in self._last else ()
                new = enumerate(change.values)
                changed = tuple(i for i, value in new if i >= len(old) or repr(old[i]) != repr(value))
                first, groups, steps = self.unexplained.get(name, (step, changed, 0))
                self.unexplained[name] = (first, groups, steps + 1)
            self._last[name] = change

    @property
    def calling(self) -> list[str]:
        """The schedulers that call a function of the script."""
        return sorted(self.schedulers & _CALLING)

    def doubts(self) -> Iterator[Issue]:
        """A remark on each option whose values a record may have chosen, or that the recorder cannot read."""
        for name, kind in self.unread.items():
            text = f"{name} is of type {kind}, whose arithmetic the recorder does not know: use a float or a tensor"
            yield _doubt(name, text)
        for name, (step, changed, steps) in self.unexplained.items():
            if name == RAND_ON_EMPTY:  # the bound counts it
                continue
            is_whole = name in _PRIVATE or not changed
            groups = "" if is_whole else f" of parameter group {', '.join(map(str, changed[:5]))}"
            times = f" (the first of {steps} such steps)" if steps > 1 else ""
            advice = (
                "use one of torch or Opacus, and step it after whole batches, not physical ones; or declare it by "
                f"--public {public_name(name)} if it reads no record"
            )
            text = (
                f"{name}{groups} changed before step {step}{times}, and not by a scheduler whose values are fixed in "
                f"advance: {advice}"
            )
            yield _doubt(name, text)


def _doubt(name: str, text: str) -> Issue:
    condition = "data-independent-hyperparameters" if name in _PRIVATE else "update-rule"
    return doubted(condition, text=text, option=public_name(name))


def public_name(option: str) -> str:
    """The name by which a user declares an option public: ``learning_rate`` for ``lr``, ``betas`` for ``betas[0]``."""
    name = option.partition("[")[0]
    return _NAMES.get(name, name)
