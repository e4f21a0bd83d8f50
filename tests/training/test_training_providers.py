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
    native = next(backend for backend in BACKENDS if backend.kind == "native")
    assert native.capabilities <= CAPABILITIES
    module, _, name = native.trainer.partition(":")
    assert hasattr(getattr(importlib.import_module(module), name)(), "train")
    assert all("description" in option for option in native.schema["properties"].values())


def test_opacus_declares_what_it_can_show():
    """Importing the descriptor needs no opacus; its trainer is tested where there is one."""
    opacus = next(backend for backend in BACKENDS if backend.kind == "opacus")
    assert opacus.capabilities == CAPABILITIES - {"norm-log", "parts"}
    assert all("description" in option for option in opacus.schema["properties"].values())
