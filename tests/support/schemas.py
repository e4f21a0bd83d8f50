"""The published schemas of other projects' formats, pinned in ``tests/reporters/schemas``."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMAS = Path(__file__).parents[1] / "reporters" / "schemas"


@cache
def _sarif() -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@cache
def _registry() -> jsonschema.Draft7Validator:
    schema = yaml.safe_load((SCHEMAS / "deployments-registry.yaml").read_text(encoding="utf-8"))
    return jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def sarif_errors(document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in _sarif().iter_errors(document)]


def registry_errors(record: Any) -> list[str]:
    """Return the violations of the Differential Privacy Deployments Registry's schema by a record."""
    return [f"{error.json_path}: {error.message}" for error in _registry().iter_errors(record)]
