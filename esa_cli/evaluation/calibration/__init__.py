"""Fits projections on a text (`esa calibrate`), and finds retrieval heads (`esa heads`)."""
