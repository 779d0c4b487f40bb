"""The ESA paper's method (arXiv 2502.14477), by which a layer attends to selected tokens.

Shapes use these letters: H query heads, G key/value heads, D head dimension, C current tokens (the
chunk), N cached tokens, I initial, M middle and L local tokens, K selected tokens, F = G * D folded
dimension, R reduced dimension.

Read `layer.py` (Algorithm 1) first, then `step.py`, `selection.py` (equations (2)-(4), (6), (8)),
`compression.py` (equations (5), (7)), `positions.py` (Section 3.2) and `kernels.py`. docs/design.md
names, for each equation, the test that compares the code with loops in plain Python."""
