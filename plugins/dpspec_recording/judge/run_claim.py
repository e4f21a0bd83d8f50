"""The claim about a recorded run: its names and numbers, before any recording is read.

No library of numbers is imported: ``dpspec record --check`` refuses a wrong claim before the script runs. The script
may set the variables that such a library reads when it is imported.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dpspec.contract.rules import Rule
from dpspec.engine.stated_claim import StatedClaim
from dpspec.errors import UsageError
from dpspec.registry.loader import load_catalog
from dpspec.text import closest, did_you_mean, listed
from dpspec_recording.offered import MOST_ACCEPTED, MOST_NAMES
from dpspec_recording.outcomes.conditions import ASSUMABLE, NOT_REPLAYED

#: All names that ``--public`` accepts: hyperparameters of the private sum, and options of torch's optimizers.
HYPERPARAMETERS = (
    *("rate", "divisor", "clip_norm", "noise_multiplier", "steps"),
    *("learning_rate", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "alpha", "rho", "lambd"),
    *("parameters", "lr_decay", "momentum_decay", "etas", "step_sizes", "t0", "amsgrad", "centered", "maximize"),
)


@dataclass(frozen=True, kw_only=True)
class RunClaim(StatedClaim):
    """The claim about a recorded run, and its threat model.

    adjacency: ``zero-out`` or ``add-remove``.
    public: names of hyperparameters that the user declares public. assume: names of channels and assumptions that the
    user assumes if the recording leaves them open. accept: names of rules whose cautions the user accepts, and
    ``not-replayed``. select: the only rules to evaluate, all if empty; ignore: rules that are not evaluated.
    """

    adjacency: str = "zero-out"
    assume: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def require_valid(self) -> None:
        super().require_valid()
        if self.adjacency not in ("zero-out", "add-remove"):
            raise UsageError(
                f"--adjacency must be zero-out or add-remove for a recorded run, got {self.adjacency!r}; a spec with "
                "mechanism: {kind: group} and without training bounds replaced records"
            )
        for option in ("assume", "public", "select", "ignore", "accept"):
            most, names = MOST_ACCEPTED if option == "accept" else MOST_NAMES, getattr(self, option)
            if len(names) > most:
                raise UsageError(f"{option}: at most {most} names are allowed, got {len(names)}")
        require_known("assume", self.assume, ASSUMABLE)
        require_known("public", self.public, HYPERPARAMETERS)
        for option in ("accept", "select", "ignore"):
            require_rules(option, getattr(self, option))


def require_known(option: str, names: Collection[str], valid: Collection[str]) -> None:
    wrong = next((name for name in names if name not in valid), None)
    if wrong is not None:
        suggestion = did_you_mean(closest(wrong, valid))
        raise UsageError(f"{option}: {wrong!r} is unknown{suggestion} (valid: {listed(valid)})")


def installed_rules() -> dict[str, Rule]:
    return {name: offered.provider for name, offered in load_catalog().rules.items()}


def require_rules(option: str, names: Collection[str]) -> None:
    """Raise ``UsageError`` for a name that no installed rule has; ``accept`` also takes ``not-replayed``."""
    valid = {*installed_rules(), *((NOT_REPLAYED,) if option == "accept" else ())}
    wrong = next((name for name in names if name not in valid), None)
    if wrong is not None:
        raise UsageError(
            f"{option}: {wrong!r} is no rule{did_you_mean(closest(wrong, valid))} (valid: {listed(sorted(valid))})"
        )
