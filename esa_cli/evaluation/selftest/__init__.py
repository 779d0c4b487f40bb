"""Self-tests: facts planted in long texts, asked by several methods; one question by many methods.

run_plan            settings; which methods share a prefill
selftest_run        makes the documents, prefills them, asks, writes rows
needle_recall       the share of a fact in view of each layer, or among the passages of an answer
score_tables        rows -> tables for the terminal
method_comparison   one question, side by side
"""
