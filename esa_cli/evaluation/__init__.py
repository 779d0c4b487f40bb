"""Measurement: self-tests, benchmarks, calibration, retrieval heads, conformance, reports."""
