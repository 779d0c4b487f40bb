"""Stores keys and values of documents: in memory, concatenated, and on disk (`library`).

Keys are unrotated, so rows have no position and documents can be cropped, kept and concatenated.
"""
