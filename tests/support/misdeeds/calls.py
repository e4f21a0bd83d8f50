"""What of a plugin is called how, and what takes its place where it does something wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Misdeed:
    """One thing done wrong.

    module: whose text is changed, ``plugin`` or ``code``; text: what is put behind the honest one.
    command: what comes across it, with ``{place}`` for the folder of specs; harmless: dpspec may put up with it.
    ends: whether nothing can be done but name it and say how to leave it out, because the process ends or hangs.
    """

    name: str
    module: str
    text: str
    command: tuple[str, ...]
    harmless: bool = False
    ends: bool = False


def function(head: str, body: str) -> str:
    return f"def {head}:\n" + "".join(f"    {line}\n" for line in body.splitlines())


#: What is used how: the head of the function that replaces it, and the command that calls it.
REPORT = ("report", "{place}/result.json", "--format", "misdeed")
RUN_COIN = ("run", "{place}/coin.yaml", "--store", "{place}/store")
RUN_TRAINED = ("run", "{place}/trained.yaml", "--store", "{place}/store")
RUN_CANARIES = ("run", "{place}/canaries.yaml", "--store", "{place}/store")
RUN_STEPS = ("run", "{place}/steps.yaml", "--store", "{place}/store")
VALIDATE = ("validate", "{place}/coin.yaml")
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "render": ("render(result, *, internal=False)", REPORT),
    "facts": ("facts(self)", VALIDATE),
    "load": ("load(self)", RUN_TRAINED),
    "parameters": ("parameters(self)", ("validate", "{place}/trained.yaml")),
    "build": ("build(self, seed)", RUN_TRAINED),
    "trainer": ("trainer()", RUN_TRAINED),
    "constants": ("constants(spec)", RUN_TRAINED),
    "check": ("check(self, spec, facts)", VALIDATE),
    "bound": ("bound(self, spec, context)", ("run", "{place}/coin.yaml", "--bounds-only")),
    "plan": ("plan(self, spec, facts)", ("plan", "{place}/coin.yaml")),
    "trial_inputs": ("trial_inputs(self, spec)", RUN_COIN),
    "trials": ("trials(self, inputs, context, indices)", RUN_COIN),
    "conclude": ("conclude(self, spec, trials)", RUN_COIN),
    "pool": ("pool(demand)", ("run", "{place}/coin.yaml", "--store", "{place}/store", "--executor", "misdeed")),
    "limit": ("limit(facts, options)", ("validate", "{place}/canaries.yaml")),
    "records": ("records(asked)", RUN_CANARIES),
    "directions": ("directions(asked)", RUN_STEPS),
    "score": ("score(observed)", RUN_CANARIES),
}
_OWNERS = {"facts": "Source", "load": "Source", "parameters": "Factory", "build": "Factory"} | dict.fromkeys(
    ("check", "bound", "plan", "trial_inputs", "trials", "conclude"), "CoinAudit"
)


def replaced(name: str, body: str) -> str:
    """The text that puts another function in the place of one."""
    head, _ = CALLS[name]
    owner = _OWNERS.get(name)
    made = function(head, body)
    return f"{made}{owner}.{name} = {name}\n" if owner else made
