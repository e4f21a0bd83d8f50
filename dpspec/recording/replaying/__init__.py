"""A script's training on neighboring datasets, and the constants that must be equal for all."""
