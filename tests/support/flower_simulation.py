"""The server of the guide in Flower's simulation engine, with 12 clients in processes of Ray."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn

from dpspec.integrations.federated import check_rounds
from dpspec.integrations.flower import RecordedStrategy
from support.federated_server import local_update

client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 2, (8,), generator=generator)
    model = nn.Linear(20, 2)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    update = local_update(model, x, y)
    with torch.no_grad():
        for p, part in zip(model.parameters(), update, strict=True):
            p -= part
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 8})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    average = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    private = DifferentialPrivacyServerSideFixedClipping(average, 3.0, 0.5, num_sampled_clients=6)
    arrays = ArrayRecord(nn.Linear(20, 2).state_dict())
    with RecordedStrategy(private, "rounds", clients=12) as strategy:
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=25)
    print(check_rounds("rounds", epsilon=15, accept=("second-optimizer", "not-replayed")))


run_simulation(server_app=server, client_app=client, num_supernodes=12)
