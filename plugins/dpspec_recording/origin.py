"""Facts of a header about the origin of a recording: when, on which machine, with which versions and dataset."""

from __future__ import annotations

import hashlib
import platform
import secrets
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from dpspec.version import VERSION

#: Libraries that run or account for a training, by the name of their module.
_LIBRARIES = (
    *("opacus", "jax", "optax", "transformers", "accelerate", "lightning", "pytorch_lightning", "flwr", "numpy"),
)

#: The largest number of nested datasets that are followed, and of characters of a name.
_DEEPEST, _LONGEST = 8, 80


def origin(dataset: Any, parameters: Iterable[Tensor]) -> dict[str, Any]:
    """The facts by their names in the header. dataset: of the loader, None without one."""
    used = list(parameters)
    devices = sorted({p.device.type for p in used})
    gpu = torch.cuda.get_device_name() if "cuda" in devices else ""
    commitment, salt = _commitment(dataset)
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": ", ".join(filter(None, (platform.platform(terse=True), platform.machine(), *devices, gpu))),
        "versions": dict(_versions()),
        "dtypes": tuple(sorted({str(p.dtype).removeprefix("torch.") for p in used})),
        "dataset": " of ".join(_kinds(dataset)),
        "indices": commitment,
        "indices_salt": salt,
    }


def _versions() -> Iterator[tuple[str, str]]:
    yield from (("dpspec", VERSION), ("python", platform.python_version()), ("torch", str(torch.__version__)))
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            yield name, version[:_LONGEST]


def _kinds(dataset: Any) -> Iterator[str]:
    """The names of the classes of a dataset and of those that it wraps, the outermost first."""
    for _ in range(_DEEPEST):
        if dataset is None:
            return
        yield type(dataset).__name__[:_LONGEST]
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None


def _commitment(dataset: Any) -> tuple[str, str]:
    """SHA-256 of a salt and the indices of the outermost ``Subset``, and the salt; empty without a ``Subset``.

    The digest is published. Without the salt, which stays in the folder, it confirms no guess of the indices.
    """
    for _ in range(_DEEPEST):
        if type(dataset) is Subset:
            indices = np.asarray(dataset.indices, dtype="<i8")
            salt = secrets.token_bytes(32)
            return hashlib.sha256(salt + indices.tobytes()).hexdigest(), salt.hex()
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
    return "", ""
