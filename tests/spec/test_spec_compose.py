from __future__ import annotations

from pathlib import Path

import pytest

from dpspec.contract import Span

from .conftest import Load
