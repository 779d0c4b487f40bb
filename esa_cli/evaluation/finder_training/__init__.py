"""Training of a finder: a LoRA adapter of a model's middle layers, and maps of what is behind them,
with which a question's tokens find the passage that answers it.

    finder_texts     a text's tokens, its passages and their questions
    finder_batches   passages of one text that compete, with questions
    passage_scores   late interaction of questions and passages
    finder_trainer   the loop
    finder_scores    how often held-out questions find their passages, beside BM25
    finder_run       one training from the folders to the finder
"""
