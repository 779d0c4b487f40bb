"""Many questions from a file, their answers into another, in the same order. Knows no screen."""
