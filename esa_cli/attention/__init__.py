"""The paper: how one layer selects tokens and attends to them (ESA, arXiv 2502.14477).

Letters: H query heads, G key/value heads, D head dimension, C current tokens (the chunk), N cached
tokens, I initial, M middle, L local, K selected tokens, F = G * D folded dimension, R reduced one.

Equations have the paper's typeset numbers. Each row: what it says; the file; the test that compares
it with a plain loop in `tests/support/reference.py`.

(1) attention over [I, M_k, L, C]
    layer.py            test_layer.py::test_attention_is_eq_1
(2) M_k, the k middle tokens with the highest score
    selection.py        test_scoring.py::test_top_k_matches_a_stable_sort
                        test_selection.py::test_selection_matches_loops
(3) f_s(m; c), the dot products of query c and key m summed over heads
    step.py, folding.py test_scoring.py::test_sum_is_eq_3_and_4
                        test_compression.py::test_folding_keeps_the_sum_over_heads
(4) F_s(m; C), f_s less each query's maximum over M, then the maximum over the chunk
    scoring.py          test_scoring.py::test_sum_is_eq_3_and_4
                        test_scoring.py::test_blockwise_in_two_passes_is_the_same
(5) linear maps of queries and keys to R dimensions
    compression.py      test_scoring.py::test_sum_with_reduced_keys
    learned_maps.py     test_compression.py::test_learned_gives_back_what_was_saved
(6) f_s from the reduced vectors
    step.py             test_scoring.py::test_sum_with_reduced_keys
(7) the squared error of the maps, minimised in closed form, or by descent as in the paper
    compression.py      test_compression.py::test_no_other_pair_has_a_smaller_error
    evaluation/calibration/train_maps.py
                        test_fitted_maps.py::test_square_loss_is_eq_7
(8) proximity: each score becomes the maximum within epsilon tokens
    selection.py        test_selection.py::test_proximity_is_eq_8
Section 3.2: far tokens at distance w, near tokens in order
    positions.py        test_positions.py::test_esa_far_is_always_at_w
    rope.py             test_positions.py::test_esa_near_is_the_papers_numbering
Algorithm 1, steps 10-11: attention with its log-sum-exp
    kernels/dispatch.py test_kernels.py::test_kernel_matches_loops
Algorithm 1, steps 12-14: fusion by the log-sum-exp
    fusion.py           test_kernels.py::test_fusion_is_one_softmax_over_the_union
                        test_kernels.py::test_fusion_is_stable
Algorithm 1 as a whole, for one chunk
    layer.py            test_layer.py::test_one_chunk_alone
                        test_layer.py::test_decode_is_the_general_path
"""
