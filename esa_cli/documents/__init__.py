"""Converts files, folders and streams into text with pages and chapters."""
