"""Questions about the whole: every place of documents that answers, not the best one alone."""
