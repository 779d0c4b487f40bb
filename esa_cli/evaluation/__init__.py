"""Tests attention methods by self-tests and benchmarks, fits projections, and checks plugins."""
