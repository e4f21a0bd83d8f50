"""A loop with accelerate on two processes."""

import sys

import torch
from accelerate import Accelerator

import dpspec
from support.two_processes.training import private_parts

folder, fault = sys.argv[1], sys.argv[2]
accelerator = Accelerator(cpu=True)
model, optimizer, loader, engine = private_parts(fault)
optimizer = accelerator.prepare(optimizer)
with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine):
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
torch.distributed.barrier()
if accelerator.is_main_process:
    checked = dpspec.check(folder, epsilon=8, delta=1e-5)
    print("passed" if checked.passed else "failed", checked.epsilon)
accelerator.end_training()
