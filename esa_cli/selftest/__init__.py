"""Runs probes over methods: what is planned, asked, seen and kept; one question by many methods.

plan     which texts are read by which methods
shared   one reading for many methods
engine   reads, asks, and writes rows
recall   was the fact in view
compare  one question, side by side
"""
