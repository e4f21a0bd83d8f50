"""The native backend's descriptor is light, and names what exists."""

from __future__ import annotations

import importlib
import subprocess
import sys

from dpspec.contract import CAPABILITIES
from dpspec.training.providers import BACKENDS


def test_the_descriptor_imports_neither_torch_nor_numpy():
    code = "import sys, dpspec.training.providers; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_native():
    (native,) = BACKENDS
    assert native.kind == "native"
    assert native.capabilities <= CAPABILITIES
    module, _, name = native.trainer.partition(":")
    assert hasattr(getattr(importlib.import_module(module), name)(), "train")
    assert all("description" in option for option in native.schema["properties"].values())
