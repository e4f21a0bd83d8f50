"""What a training holds apart from its noisy parameters: options of the optimizer, and other state of the model."""
