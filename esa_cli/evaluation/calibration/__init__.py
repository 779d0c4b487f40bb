"""Calibration: compressors fitted on any text, and retrieval heads found in a model.

activations           folded queries and keys of each layer of a model that reads a text
train_maps            projections: closed form, PCA, trained
calibration_pipeline  `esa calibrate`: recall@k of each on held-out tokens
retrieval_heads       `esa heads`: each head's votes for needles, and the smallest set of heads
"""
