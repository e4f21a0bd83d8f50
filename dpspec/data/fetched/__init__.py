"""Data that is not at hand: declared facts alone, or fetched by name from openml.org and the Hugging Face Hub."""
