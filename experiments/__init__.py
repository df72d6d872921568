"""Experiments, run as `python -m experiments.NAME --flags`; none imports another."""
