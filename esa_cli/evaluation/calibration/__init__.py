"""Calibration: fits projections on a text (`esa calibrate`), finds retrieval heads (`esa
heads`)."""
