"""Finding passages that may answer a question: sentence windows, ranked by words and meaning."""
