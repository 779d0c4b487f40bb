"""The model of a command: found, checked before its weights are loaded, and opened."""
