"""Measurement: self-tests, public benchmarks, calibration, retrieval heads, conformance, reports."""
