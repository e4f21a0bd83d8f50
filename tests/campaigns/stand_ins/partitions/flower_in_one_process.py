"""Run a server app and a client app of Flower in one process, in the place of its simulation, which needs Ray.

python -m flower_in_one_process SERVER_MODULE CLIENT_MODULE CLIENTS KEY=VALUE...
"""

import json
import sys
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(Path.cwd().parent))


class LocalGrid:
    """Flower's interface to the clients, which train here."""

    def __init__(self, app: Any, count: int, config: dict[str, Any]) -> None:
        self._app, self._config, self._states = app, config, [RecordDict() for _ in range(count)]

        self.run = SimpleNamespace(run_id=1)

    def get_node_ids(self) -> list[int]:
        return [1000 + number for number in range(len(self._states))]

    def send_and_receive(self, messages: Any, **_: Any) -> list[Message]:
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        number = message.metadata.dst_node_id - 1000
        place = {"partition-id": number, "num-partitions": len(self._states)}
        context = Context(1, 1000 + number, place, self._states[number], self._config)
        reply: Message = self._app(deepcopy(message), context)  # a client gets a copy, as over a network
        return reply


def main(server: str, client: str, count: str, *settings: str) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # Flower's runtime sets them
        setattr(TaskIdentity, name, 1)
    pairs = (setting.partition("=") for setting in settings)
    config = {name: json.loads(value) for name, _, value in pairs}
    grid = LocalGrid(import_module(client).app, int(count), config)
    import_module(server).app(grid, Context(1, 0, {}, RecordDict(), config))


if __name__ == "__main__":
    main(*sys.argv[1:])
