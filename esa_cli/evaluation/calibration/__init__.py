"""Calibration: projections fitted on a text (`esa calibrate`), retrieval heads (`esa heads`)."""
