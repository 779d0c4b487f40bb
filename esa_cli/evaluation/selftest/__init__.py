"""Runs tasks over methods: what is planned, asked, seen and kept; one question by many methods.

plan       what is read by which methods
documents  the texts of a test
shared     one reading for many methods
engine     reads, asks, and writes rows
kept       what an earlier run left
recall     was the fact in view
compare    one question, side by side
"""
