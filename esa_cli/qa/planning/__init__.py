"""Estimates of the memory and time that an ingest takes."""
