"""Finds passages of documents that may answer a question, by BM25 and by late interaction."""
