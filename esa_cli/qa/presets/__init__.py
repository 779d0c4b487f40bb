"""Loads and validates presets, and builds the attention methods that presets name."""
