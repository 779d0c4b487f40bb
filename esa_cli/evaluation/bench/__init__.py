"""Loads public benchmarks, asks the questions by several methods, and scores the answers."""
