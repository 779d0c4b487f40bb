"""Loading of a model into memory: devices, number types and quantised weights."""
