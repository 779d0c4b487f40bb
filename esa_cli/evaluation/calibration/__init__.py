"""Calibration: compressors fitted on any text, and retrieval heads found in a model.

activations           folded queries and keys of each layer of a model that reads a text
train_maps            projections: closed form, PCA, trained
calibration_pipeline  `esa calibrate`: recall@k of each on held-out tokens
head_ranking          each head's votes for a question's needle, and the smallest set of heads
retrieval_heads       `esa heads` by needles
question_pairs        questions about texts with the places of their answers
pair_heads            `esa heads --pairs`: each head's margin over the best wrong window
heads_preset          a preset in which only these heads vote
"""
