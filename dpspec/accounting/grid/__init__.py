"""One step's outcomes in cells of privacy loss on a grid, and measures whose profiles lie above and below them."""
