"""Read, write, compare, redact and weigh results. Reporters use this package and the contract, not the engine."""
