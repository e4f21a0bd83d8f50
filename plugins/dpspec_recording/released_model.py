"""The digests of a model's tensors in torch: of a recorded model at its end, and of a model to be released."""

import hashlib
import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dpspec.errors import UsageError
from dpspec.regular_files import open_regular
from dpspec.text import shortened
from dpspec_recording.folder.weights import ReleasedModel, TensorDigest

#: The largest file: 64 GiB.
_MOST_BYTES = 1 << 36

#: Suffixes of files of safetensors, and of files that ``torch.save`` writes.
SAFETENSORS = ".safetensors"
_OF_TORCH = (".pt", ".pth", ".bin")

#: Errors of the readers for broken files; the unpickler of torch raises many kinds.
_UNREADABLE = (
    *(SafetensorError, pickle.UnpicklingError, zipfile.BadZipFile, struct.error),
    *(RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError, AssertionError, OverflowError),
    MemoryError,
)


def tensors_of_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers in ``state_dict()``, whose hooks are not called."""
    tensors = dict[str, Tensor](model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{key}" if prefix else key] = buffer
    return tensors


def digests_of_state(model: nn.Module) -> dict[str, TensorDigest]:
    """Digests of the dense tensors in ``state_dict()``."""
    tensors = tensors_of_state(model)
    dense = {name: tensor for name, tensor in tensors.items() if _is_dense(tensor)}
    return {name: _digest(tensor) for name, tensor in dense.items()}


def released_model(model: str | Path | Mapping[str, Any]) -> ReleasedModel:
    """The digests of a file of safetensors or ``torch.save``, or of a ``state_dict()``.

    Files have up to 64 GiB. A file of torch is read by ``torch.load(weights_only=True)``, which unpickles tensors only.

    Raises:
        UsageError: The file cannot be read, or has something else than tensors by name.
    """
    if isinstance(model, Mapping):
        return ReleasedModel("the state_dict", _by_name(model, "model"))
    if not isinstance(model, str | Path):
        raise UsageError(f"model must be a path or a state_dict(), got {type(model).__name__}")
    path = Path(model)
    if path.suffix not in (SAFETENSORS, *_OF_TORCH):
        raise UsageError(f"{path}: a model must be a file {', '.join((SAFETENSORS, *_OF_TORCH))}")
    try:
        with open_regular(path, _MOST_BYTES) as file:
            lazy = zipfile.is_zipfile(file)
        if path.suffix == SAFETENSORS:
            return ReleasedModel(path.name, _of_safetensors(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about old formats and pickles
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=lazy)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _UNREADABLE:
        if path.suffix == SAFETENSORS:
            raise UsageError(f"{path}: safetensors refuses it: it has another format, no tensor, or is cut") from None
        raise UsageError(
            f"{path}: torch.load(weights_only=True) refuses it: it has more than tensors, another format, or is cut; "
            "write it by torch.save(model.state_dict(), FILE)"
        ) from None
    tensors = _by_name(content, str(path))
    _require_no_hidden_values(content, str(path))
    return ReleasedModel(path.name, tensors)


def _of_safetensors(path: Path) -> dict[str, TensorDigest]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: _digest(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    if not tensors:
        raise ValueError("it holds no tensor")
    return tensors


def _by_name(content: Any, where: str) -> dict[str, TensorDigest]:
    if not isinstance(content, Mapping) or not content:
        raise UsageError(f"{where}: must have tensors by name, got {type(content).__name__}: save model.state_dict()")
    for name, tensor in content.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor) and _is_dense(tensor)):
            kind = type(tensor).__name__
            raise UsageError(
                f"{where}: the entry {shortened(str(name), 60)!r} is {kind} and must be a dense tensor: save "
                "model.state_dict() alone"
            )
    return {name: _digest(tensor) for name, tensor in content.items()}


def _require_no_hidden_values(tensors: Mapping[str, Tensor], where: str) -> None:
    """``torch.save`` writes more than digests cover: the whole memory behind a view, and attributes of a parameter.

    Opacus keeps the gradients of the last batch, without noise, in the attributes ``grad_sample`` and ``summed_grad``.
    """
    for name, tensor in tensors.items():
        if attributes := [attribute for attribute, value in vars(tensor).items() if not _says_little(value)]:
            raise UsageError(
                f"{where}: {shortened(name, 60)} is saved with its attributes {shortened(', '.join(attributes), 200)}, "
                "which may hold gradients without noise: save model.state_dict() alone"
            )
    views: dict[int, int] = {}
    for tensor in tensors.values():
        address = tensor.untyped_storage().data_ptr()
        views[address] = views.get(address, 0) + tensor.nbytes
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if views[storage.data_ptr()] < storage.nbytes():
            size = f"{storage.nbytes():,} bytes, and the tensors show {views[storage.data_ptr()]:,}"
            raise UsageError(f"{where}: {shortened(name, 60)} is saved with {size}: save clones of the tensors")


def _says_little(attribute: Any) -> bool:
    """Whether an attribute of a parameter is a flag, a counter or a name, as libraries add them, or empty."""
    is_empty = type(attribute) in (list, tuple, dict) and not attribute
    return attribute is None or is_empty or isinstance(attribute, bool | int | str)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta


def _digest(tensor: Tensor) -> TensorDigest:
    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    row = values.contiguous().reshape(-1).view(torch.uint8)
    return TensorDigest(_kind(tensor.dtype), tuple(tensor.shape), hashlib.sha256(row.numpy().data).hexdigest())


def _kind(dtype: torch.dtype) -> str:
    """The name of a type in safetensors, such as F32, BF16, I64 or BOOL."""
    kind = str(dtype).removeprefix("torch.").upper().replace("FLOAT8_", "F8_").replace("COMPLEX", "C")
    return kind.replace("FLOAT", "F").replace("UINT", "U").replace("INT", "I").replace("F8_E4M3FN", "F8_E4M3")
