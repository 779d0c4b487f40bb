"""Finds passages that may answer a question: windows of sentences, ranked by words and meaning."""
