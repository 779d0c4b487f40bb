"""Calibration: compressors fitted on any text, and retrieval heads found in a model.

esa calibrate   a model reads a text, selecting with whole keys     activations.py
                -> folded queries and keys of each layer, on disk   activation_files.py
                -> maps: closed form, PCA, trained                  fit_maps.py, train_maps.py
                -> recall@k of each on held-out tokens              key_recall.py
                -> of all layers                                    calibration_study.py
                these steps in order                                calibration_pipeline.py
esa heads       each head's votes for a question's needle           head_votes.py
                -> heads ranked, the smallest set that is enough    head_ranking.py
                these steps in order                                retrieval_heads.py
    --pairs     real questions' windows among wrong ones            pair_contexts.py
                -> each head's margin over the best wrong one       pair_heads.py
                a preset in which only these heads vote             heads_preset.py
"""
