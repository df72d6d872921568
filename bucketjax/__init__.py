"""Training on sequences of very different lengths in JAX.

Lengths are gathered into a small, closed set of padded shapes, chosen to cost least; each shape
compiles once; nothing is lost and everything resumes.

>>> import numpy as np
>>> import bucketjax
>>> lengths = [3, 3, 4, 5, 5, 5, 6, 7, 8, 8]
>>> spec = bucketjax.BucketSpec.fit(lengths, num_buckets=3, token_budget=40)
>>> source = [{"features": np.ones((length, 2), np.float32)} for length in lengths]
>>> sum(int(batch.weights.sum()) for batch in bucketjax.Loader(source, spec))
10
"""

from bucketjax import (
    batching,
    boundaries,
    collating,
    compiles,
    costs,
    explaining,
    exploring,
    loading,
    parallel,
    planning,
    prefetching,
    sketching,
    spec,
)
from bucketjax.batching import EpochPlan, plan_epoch
from bucketjax.costs import CostModel
from bucketjax.explaining import drift, explain
from bucketjax.exploring import explore
from bucketjax.loading import Batch, ExampleError, Loader
from bucketjax.planning import choose_shapes
from bucketjax.sketching import LengthHistogram, QuantileSketch
from bucketjax.spec import BucketSpec, Shape

__all__ = [
    "Batch",
    "BucketSpec",
    "CostModel",
    "EpochPlan",
    "ExampleError",
    "LengthHistogram",
    "Loader",
    "QuantileSketch",
    "Shape",
    "batching",
    "boundaries",
    "choose_shapes",
    "collating",
    "compiles",
    "costs",
    "drift",
    "explain",
    "explaining",
    "explore",
    "exploring",
    "loading",
    "parallel",
    "plan_epoch",
    "planning",
    "prefetching",
    "sketching",
    "spec",
]
