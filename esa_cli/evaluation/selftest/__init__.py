"""Self-tests: facts planted in long texts, asked by several methods; one question by many methods.

run_plan           settings; which methods share a prefill
selftest_documents the texts of a test
preconditions      checks before the first long prefill
shared_prefill     the method of a shared prefill
selftest_run       prefills, asks, writes rows
resumed_rows       rows of an earlier run that still count
sample_questions   asks one document's questions, over rows or from text
needle_recall      the share of a fact in view of each layer
evidence_recall    the share of a fact among the passages of an answer from text
method_comparison  one question, side by side
"""
