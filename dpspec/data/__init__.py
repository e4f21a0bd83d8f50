"""Data kinds of specs, which :mod:`dpspec.registry.builtin` lists, and the base of a plugin's data kind.

A :class:`Source` describes and reads whole rows. The keys of :func:`schema` then work without further code: ``split``
holds out test records, ``size`` draws a subset, ``standardise`` and ``radius`` scale, ``public`` opens reports.

>>> block = schema("rows", rows={"type": "integer", "minimum": 1})
>>> block["required"], sorted(block["properties"])
(['rows'], ['public', 'radius', 'rows', 'seed', 'size', 'split', 'standardise'])
"""

from dpspec.data.source import Source, schema, whole_facts, whole_rows

__all__ = ["Source", "schema", "whole_facts", "whole_rows"]
