"""Fits projections for reduced keys (`esa calibrate`), and finds retrieval heads (`esa heads`)."""
