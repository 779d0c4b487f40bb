"""Tests and compares attention methods by questions about facts planted in a document."""
