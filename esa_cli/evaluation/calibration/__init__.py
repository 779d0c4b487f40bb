"""Calibration: compressors fitted on any text, and compared by what they find again.

    a model reads a text, selecting with whole keys            collect.py
      -> each layer's folded queries and keys, on disk         shards.py
      -> maps: closed form, PCA, or trained as in the paper    fit.py, train.py, ranks.py
      -> recall@k of each on tokens that were held back        recall.py, quantise.py
      -> all of it, layer by layer                             study.py
      -> a file that says which model it is for                fingerprint.py, saving.py

Eq. 4-6 of the paper, its section on query-key compression, and its figure of recall per layer.
Nothing here knows the command line; `cli/calibrate.py` puts the steps together.
"""
