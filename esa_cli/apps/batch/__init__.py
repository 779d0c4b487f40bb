"""Answers the questions of a file, in order. Shows nothing."""
