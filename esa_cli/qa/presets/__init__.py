"""Presets: their files, their settings, and the methods that presets name."""
