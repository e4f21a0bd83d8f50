"""Results: values, JSON, validation and differences."""
