"""The layers of a spec: extends, matrix, --set."""
