"""Digests of a model's tensors at the end of a recording, and the comparison of a released model.

A digest is SHA-256 of a tensor's values in row-major, little-endian order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dpspec.text import shortened
from dpspec_recording.folder.merging import Text

#: The largest number of tensors.
MOST_TENSORS = 100_000

#: Prefixes that wrappers of a model add to names: torch.compile, DDP, and Opacus' GradSampleModule.
_WRAPPERS = ("_orig_mod.", "module.", "_module.")

#: Maximum number of tensors in a sentence, and characters of a name.
_SHOWN, _LONGEST = 3, 100


@dataclass(frozen=True)
class TensorDigest:
    """dtype: as safetensors names it. sha256: of the values, in hexadecimal digits."""

    dtype: Text
    shape: tuple[int, ...]
    sha256: Text

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Table = Mapping[str, TensorDigest]


@dataclass(frozen=True)
class ReleasedModel:
    """A model to be released. name: of its file."""

    name: str
    tensors: Table

    def differences(self, recorded: Table) -> list[str]:
        """The tensors that no tensor of a recording's end equals, each with the reason.

        A name may have the prefixes of wrappers. A tensor of another name is equal if a recorded tensor has its values,
        as tied or renamed tensors do. Recorded tensors that are not released do not matter.
        """
        values = set(recorded.values())
        reasons = []
        for name, tensor in self.tensors.items():
            same_name = recorded.get(_recorded_name(name, recorded))
            if tensor in values and (same_name is None or same_name == tensor):
                continue
            reason = "no recorded tensor has its name or values"
            if same_name is not None:
                same_kind = (same_name.dtype, same_name.shape) == (tensor.dtype, tensor.shape)
                reason = "other values" if same_kind else f"{tensor} instead of {same_name}"
            reasons.append(f"{shortened(name, _LONGEST)} ({reason})")
        return reasons

    def sentence(self, recorded: Table) -> tuple[bool, str]:
        """Whether all tensors are recorded ones, and a sentence on it without a full stop."""
        count, differences = len(self.tensors), self.differences(recorded)
        if not differences:
            tensors = "the tensor" if count == 1 else f"all {count} tensors"
            return True, f"{tensors} of {self.name} {'has' if count == 1 else 'have'} the values at the recording's end"
        shown = ", ".join(differences[:_SHOWN])
        further = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        differ = "differs" if len(differences) == 1 else "differ"
        return False, (
            f"{len(differences)} of {count} tensors of {self.name} {differ} from the recording's end: {shown}{further}"
        )


def _recorded_name(name: str, recorded: Table) -> str:
    while name not in recorded:
        wrapper = next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), None)
        if wrapper is None:
            return name.replace("._orig_mod.", ".")
        name = name.removeprefix(wrapper)
    return name
