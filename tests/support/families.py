"""The cases of families of tests that a session runs."""

import pytest


def selected(request: pytest.FixtureRequest, parameter: str) -> set[str]:
    """Return the values of a parameter in the module's tests that run: a fixture makes nothing for skipped ones."""
    return {
        case.params[parameter]
        for item in request.session.items
        if item.path == request.path
        if (case := getattr(item, "callspec", None)) is not None and parameter in case.params
    }
