"""Adapters of the recorder to trainers, federated servers and JAX: a module for each library."""
