"""Finding passages that may answer a question: windows of whole sentences, ranked by their words
(BM25) and by late interaction."""
