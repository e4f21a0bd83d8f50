"""Scripts of trainings on two processes: FOLDER, and the name of a fault, empty for none."""
