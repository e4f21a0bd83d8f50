"""From a question about a composition to a certified interval: closed forms, else finer and finer grids."""
