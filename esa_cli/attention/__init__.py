"""The paper: how one layer selects tokens and attends to them (ESA, arXiv 2502.14477).

Letters: H query heads, G key/value heads, D head dimension, C current tokens (the chunk), N cached
tokens, I initial, M middle, L local, K selected tokens, F = G * D folded dimension, R reduced one.

Read `layer.py` (Algorithm 1), `step.py`, `selection.py` (Eqs. (2)-(4), (6), (8)), `compression.py`
(Eqs. (5), (7)), `positions.py` (Section 3.2), `kernels.py`. docs/design.md names the test of each
equation, which compares it with a plain loop of `tests/support/reference.py`.
"""
