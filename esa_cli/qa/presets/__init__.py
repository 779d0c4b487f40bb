"""Presets: their files, settings, and the method that they name."""
