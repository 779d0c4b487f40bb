"""Public benchmarks, with their files, prompts and scores, and the run that asks questions."""
