"""Tests and confidence bounds for attacks on a pipeline and for what it was seen to do. Pure; no torch."""

from dpspec.contract.deprecated import find_moved_modules

find_moved_modules()
