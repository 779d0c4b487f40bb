"""Finds passages that may answer a question; they are sentences, ranked by words and meaning."""
