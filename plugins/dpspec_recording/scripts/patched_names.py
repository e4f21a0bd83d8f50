"""The public names of libraries that a recorded script finds replaced or hooked, and why: the only such list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PatchedName:
    """A public name.

    Attributes:
        package: The package whose import makes the name known.
        name: The name in the package, with dots.
        is_replaced: Whether a method is replaced by one that calls it; else the function registers a hook.
        purpose: The facts that the recorder gets by it.
    """

    package: str
    name: str
    is_replaced: bool
    purpose: str


MAKE_PRIVATE = PatchedName(
    package="opacus",
    name="PrivacyEngine.make_private",
    is_replaced=True,
    purpose="a private training is prepared: its engine, model, optimizer and loader, in each mode of clipping",
)
MAKE_PRIVATE_WITH_EPSILON = PatchedName(
    package="opacus",
    name="PrivacyEngine.make_private_with_epsilon",
    is_replaced=True,
    purpose="the same; it calls `make_private`, and both together prepare one training",
)
ITERATE = PatchedName(
    package="torch",
    name="utils.data.DataLoader.__iter__",
    is_replaced=True,
    purpose="a prepared training begins when its loader, or one of `BatchMemoryManager` around it, is iterated",
)
STEP_HOOK = PatchedName(
    package="torch",
    name="optim.optimizer.register_optimizer_step_post_hook",
    is_replaced=False,
    purpose="the number of steps of each optimizer, also of those that are not private",
)
BEFORE_STEP_HOOK = PatchedName(
    package="torch",
    name="optim.optimizer.register_optimizer_step_pre_hook",
    is_replaced=False,
    purpose="a few values of the weights that an optimizer without privacy trains, to find these again in a model",
)
FORWARD_HOOK = PatchedName(
    package="torch",
    name="nn.Module.register_forward_pre_hook",
    is_replaced=False,
    purpose="a prepared training begins also when its model computes gradients; of prepared models only",
)
STATE_HOOK = PatchedName(
    package="torch",
    name="nn.Module.register_state_dict_pre_hook",
    is_replaced=False,
    purpose="the steps after which the script reads a recorded model's weights; of recorded models only",
)

LOAD = PatchedName(
    package="torch",
    name="nn.Module.load_state_dict",
    is_replaced=True,
    purpose="the weights that a client of a federation got from its server; with `--client` only",
)

#: All names, in the order of the page.
PATCHED_NAMES = (
    MAKE_PRIVATE,
    MAKE_PRIVATE_WITH_EPSILON,
    ITERATE,
    STEP_HOOK,
    BEFORE_STEP_HOOK,
    FORWARD_HOOK,
    STATE_HOOK,
    LOAD,
)
