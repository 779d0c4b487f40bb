"""Evaluates attention methods by self-tests and benchmarks, calibrates them, and checks plugins."""
