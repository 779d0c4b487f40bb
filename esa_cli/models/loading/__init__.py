"""Loads models into memory, onto a device, with a number type or quantised weights."""
