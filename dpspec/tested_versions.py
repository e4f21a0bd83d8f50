"""The versions of libraries with which the tests pass, and the private names of torch and Opacus that dpspec uses.

Results of a newer version than these carry a note. Private names may change in any release:
``tests/test_tested_versions.py`` resolves each one in the installed libraries, and finds every use in the code here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

#: The oldest and the newest version of a library with which the tests passed, by its name in a result's environment.
TESTED: Final[Mapping[str, tuple[str, str]]] = {
    "python": ("3.11", "3.13"),
    "torch": ("2.10", "2.15"),
    "opacus": ("1.6", "1.6"),
}

#: Private functions and modules of torch.
PRIVATE_FUNCTIONS: Final = (
    "torch._C._DisableFuncTorch",
    "torch._C._current_graph_task_id",
    "torch._C._functorch.get_unwrapped",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C.DisableTorchFunction",
    "torch._C.NumberType",
    "torch._C.TensorType",
    "torch.distributed.distributed_c10d._get_default_store",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.dropout._DropoutNd",
    "torch.nn.modules.instancenorm._InstanceNorm",
    "torch.ops.aten._foreach_zero_",
    "torch.ops.aten._local_scalar_dense",
    "torch.ops.aten._to_copy",
    "torch.ops.aten._unique2",
    "torch.ops.aten._unsafe_view",
    "torch.overrides._get_current_function_mode_stack",
    "torch.overrides._pop_mode",
    "torch.overrides._push_mode",
    "torch.utils._device.DeviceContext",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._get_current_dispatch_mode",
    "torch.utils._pytree.TreeSpec",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
    "torch.utils._pytree.tree_unflatten",
)

#: Private attributes of objects of torch and of Opacus, by their class.
PRIVATE_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "torch.nn.Module": (
        "_buffers",
        "_compiled_call_impl",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks",
        "_non_persistent_buffers_set",
        "_parameters",
    ),
    "torch.Tensor": ("_version",),
    "torch._dynamo.eval_frame.OptimizedModule": ("_orig_mod",),
    "opacus.GradSampleModule": ("_module",),
}


def untested_versions(environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence without a full stop for each library of another version than the tested ones.

    Args:
        environment: Versions by name; other keys are ignored.
    """
    for name, (oldest, newest) in TESTED.items():
        version = environment.get(name)
        if isinstance(version, str) and (number := _release(version)):
            bounds = _release(oldest), _release(newest)
            if not bounds[0] <= number <= bounds[1]:
                yield f"{name} {version} was not tested with this version of dpspec: {oldest} to {newest} were"


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version such as ``2.13.0+cpu``; empty if it has none."""
    numbers = version.split("+")[0].split(".")[:2]
    return tuple(map(int, numbers)) if len(numbers) == 2 and all(number.isdecimal() for number in numbers) else ()
