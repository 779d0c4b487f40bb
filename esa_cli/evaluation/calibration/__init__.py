"""Calibration: compressors fitted on any text, and retrieval heads found in a model.

activations      folded queries and keys of each layer of a model that reads a text
fitted_maps      projections: closed form, PCA, trained; `esa calibrate`: recall@k of each
retrieval_heads  `esa heads`: each head's votes for needles, and the smallest set of heads
"""
