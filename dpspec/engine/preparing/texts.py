"""Records that are texts: ids of tokens, which are no quantities, and go only where nothing computes with features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpspec.contract import Diagnostic, Facts, Spec
from dpspec.contract.catalog import Offered


def texts_refused(spec: Spec, facts: Facts, mechanism: Offered) -> Iterator[Diagnostic]:
    """What to say where a mechanism that does not take texts is given some."""
    if facts.vocabulary is not None and not mechanism.provider.tokens:
        yield Diagnostic(
            code="unsupported",
            message=f"{spec.mechanism.kind!r} computes with features, and {spec.data.kind!r} gives ids of tokens",
            path=("data", "kind"),
            help="take a mechanism for which features are no quantities, such as group",
        )


def require_takes_texts(model: Offered, facts: Facts) -> None:
    """Raise ``ValueError`` where a model that does not take texts is given some."""
    if facts.vocabulary is not None and not model.provider.tokens:
        raise ValueError(
            f"{model.provider.kind} computes with features, and the records are ids of {facts.vocabulary} tokens; "
            "transformer takes them"
        )


def texts_flaw(x: Any, part: str, vocabulary: int | None) -> str:
    """Why rows (n, ...) are no texts of so many tokens; empty where they are, or where none are promised."""
    if vocabulary is None or not ((x != x.round()) | (x < 0) | (x >= vocabulary)).any():
        return ""
    return f"{part}_x holds values that are no ids in 0..{vocabulary - 1}, where facts() says that records are texts"
