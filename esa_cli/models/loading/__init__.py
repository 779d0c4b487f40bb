"""A model into memory: devices, types and quantised weights."""
