"""Evaluates methods of attention: self-tests, benchmarks, calibration and checks of plugins."""
