"""A model into memory: types, quantised weights, devices, parts of larger models."""
