"""Evaluates methods by self-tests, benchmarks, calibration and conformance checks."""
