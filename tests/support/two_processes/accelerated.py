"""A loop with accelerate on two processes: FOLDER, and names of faults."""

import torch
from accelerate import Accelerator

import dpspec
from dpspec.errors import DpspecError
from support.two_processes.training import cases, private_parts, summary

accelerator = Accelerator(cpu=True)
for folder, fault in cases():
    model, optimizer, loader, engine = private_parts(fault)
    optimizer = accelerator.prepare(optimizer)
    try:
        with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine):
            for _ in range(2):
                for batch in loader:
                    optimizer.zero_grad()
                    accelerator.backward(model(**batch)["loss"])
                    optimizer.step()
        torch.distributed.barrier()
        if accelerator.is_main_process:
            print(f"{fault}: {summary(dpspec.check(folder, epsilon=8, delta=1e-5))}")
    except DpspecError as error:
        print(f"{fault}: {error}")
accelerator.end_training()
