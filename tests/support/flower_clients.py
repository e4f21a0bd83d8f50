"""The clients of ``support.federated_clients`` as ``NumPyClient``, in the loop of Flower's server with ``FedAvg``."""

from functools import partial
from typing import Any

import torch
from flwr.client import NumPyClient
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from support.federated_clients import RECORDS, RECORDS_FROM_SERVER, Client, new_model, with_records


def tensors_of(arrays: Any, fault: str) -> dict[str, torch.Tensor]:
    """Flower's arrays as the weights of a client's model."""
    return {name: torch.tensor(array) for name, array in zip(new_model(fault).state_dict(), arrays, strict=True)}


class PrivateClient(NumPyClient):
    """Trains privately from the server's arrays, and sends the arrays of its weights."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
        received = tensors_of(parameters, self._client.fault)
        return [tensor.numpy() for tensor in self._client.train(received).values()], RECORDS, {}


class InThisProcess(ClientProxy):
    """Flower's interface to a client, which trains here."""

    def __init__(self, number: int, client: Client) -> None:
        super().__init__(str(number))
        self._client = PrivateClient(client).to_client()

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        return self._client.fit(ins)

    def _not_asked(self, *_: Any) -> Any:
        raise NotImplementedError

    get_properties = get_parameters = evaluate = reconnect = _not_asked


class RecordsFromServer(FedAvg):
    """A faulty server, whose weights have records of a client."""

    def __init__(self, client: Client, **settings: Any) -> None:
        super().__init__(**settings)
        self._client = client

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        weights = with_records(tensors_of(parameters_to_ndarrays(parameters), ""), self._client)
        return ndarrays_to_parameters([tensor.numpy() for tensor in weights.values()]), metrics


def flower_federation(clients: list[Client], rounds: int) -> None:
    """All clients train in each round, one after the other, from the average of the last round."""
    manager = SimpleClientManager()
    for number, client in enumerate(clients):
        manager.register(InThisProcess(number, client))
    start = [tensor.numpy() for tensor in new_model(clients[-1].fault).state_dict().values()]
    faulty = clients[0].fault == RECORDS_FROM_SERVER
    strategy = (partial(RecordsFromServer, clients[0]) if faulty else FedAvg)(
        fraction_evaluate=0.0,
        min_fit_clients=len(clients),
        min_available_clients=len(clients),
        initial_parameters=ndarrays_to_parameters(start),
    )
    server = Server(client_manager=manager, strategy=strategy)
    server.set_max_workers(1)
    server.fit(rounds, timeout=None)
