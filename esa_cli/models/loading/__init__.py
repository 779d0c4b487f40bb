"""A model into memory: types, packed weights, devices, parts of larger models."""
