"""Audit of recorded trainings: the mechanism and the backend ``recorded``, rules, and the commands on recordings."""

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec.contract.rules import Rule
from dpspec_recording import offered
from dpspec_recording.observers.own_rules import RULES

DPSPEC_API = 1

COMMANDS = (
    dps.Command(
        name="record",
        summary="Run a script, and record the private trainings in it.",
        function="dpspec_recording.scripts.command:record",
    ),
    dps.Command(
        name="check",
        summary="Compare a recorded training with a claim.",
        function="dpspec_recording.commands:check",
    ),
    dps.Command(
        name="rules",
        summary="List what `dpspec check` notices in a recorded training.",
        function="dpspec_recording.commands:rules",
    ),
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    return (offered.MECHANISM,)


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    return (offered.BACKEND,)


@dps.hookimpl
def dpspec_rules() -> Iterable[Rule]:
    return RULES


@dps.hookimpl
def dpspec_commands() -> Iterable[dps.Command]:
    return COMMANDS
