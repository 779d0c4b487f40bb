"""Evidence: the passages that an answer rests on, their page and their heat map."""
