"""Whom a recorder watches, and what it measures of a step.

``recognised``: what is known by name and what is refused; ``sampler_watch``, ``optimizer_watch``, ``parameter_watch``,
``accountant_watch``: one each; ``contributions``, ``noise_sketch``: what is clipped and added; ``pending_step``: the
record that it becomes. Nothing here changes what it looks at, but for gradient canaries that the caller planted.
"""
