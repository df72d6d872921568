"""The main job: training with and without bucketing, compared.

It implements the idea of Khomenko et al. 2016 (arXiv 1708.05604): an LSTM trained with CTC, its
batches bucketed by length. Every hyper-parameter is this project's own.
"""
