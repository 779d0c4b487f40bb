"""Self-tests, benchmarks, calibration, retrieval heads and conformance checks."""
