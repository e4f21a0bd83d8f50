"""Schedulers of torch's and of Opacus' optimizers, by the names of their classes."""

from collections.abc import Callable
from typing import Any

from opacus import schedulers as private_schedulers
from torch.optim import lr_scheduler as schedulers

#: Schedulers of the learning rate.
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: schedulers.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [4, 9], 0.3),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.2, 1.0, 8),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 20),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 5),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 5),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=40),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda n: 0.97**n),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda n: 0.99),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1.0, 5), schedulers.CosineAnnealingLR(o, 20)], [5]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, 0.1, 1.0, 5), schedulers.ExponentialLR(o, 0.98)]
    ),
}

#: Schedules of Opacus' noise and clip norm.
PRIVATE_SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "ExponentialNoise": lambda o: private_schedulers.ExponentialNoise(o, gamma=0.99),
    "StepNoise": lambda o: private_schedulers.StepNoise(o, step_size=5, gamma=0.9),
    "LambdaNoise": lambda o: private_schedulers.LambdaNoise(o, noise_lambda=lambda n: 0.99**n),
    "ExponentialGradClip": lambda o: private_schedulers.ExponentialGradClip(o, gamma=0.99),
    "StepGradClip": lambda o: private_schedulers.StepGradClip(o, step_size=5, gamma=0.9),
    "LambdaGradClip": lambda o: private_schedulers.LambdaGradClip(o, scheduler_function=lambda n: 0.99**n),
}
