"""Finding the passages of documents that may answer a question: windows of whole sentences, ranked
by their words (BM25) and by the model's retrieval heads."""
