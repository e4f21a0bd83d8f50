"""What a recorder observes of a training, and how it measures a step.

``recognised``: what is known by name and what is refused; ``sampler_watch``, ``optimizer_watch``, ``parameter_watch``,
``accountant_watch``: one each; ``gradients``: the clipped sum; ``noise_sketch``, ``noise_watch``: its noise;
``pending_step``: the record of a step. Nothing here changes the training, except that ``optimizer_watch`` adds gradient
canaries if the caller planted some.
"""
