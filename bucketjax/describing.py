"""Say in a few words what arrays a function is called with.

>>> import numpy as np
>>> describe((np.ones((2, 3), np.float32), np.int32(1)))
'float32[2,3], int32[]'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["describe"]

_MOST_LEAVES = 12


def describe(arguments: Any) -> str:
    """Shapes and dtypes of the arrays in `arguments`, short enough for a message.

    Of a tuple of arguments, those with very many arrays (a train state) only give their number
    and the first of them.

    >>> import numpy as np
    >>> describe({"features": np.ones((8, 30, 5), np.float32), "labels": np.ones((8, 4), np.int32)})
    'features float32[8,30,5], labels int32[8,4]'
    >>> describe(({f"layer{n}": np.ones(n) for n in range(20)}, np.ones(3), True))
    '20 arrays (layer0 float64[0], ...), float64[3], bool'
    """
    plain_tuple = isinstance(arguments, tuple) and not hasattr(arguments, "_fields")
    texts = []
    for argument in arguments if plain_tuple else (arguments,):
        leaves = jax.tree_util.tree_flatten_with_path(argument)[0]
        some = [_describe_leaf(path, leaf) for path, leaf in leaves[:_MOST_LEAVES]]
        if len(leaves) > _MOST_LEAVES:
            some = [f"{len(leaves)} arrays ({some[0]}, ...)"]
        texts += some
    return ", ".join(texts) or "no arrays"


def _describe_leaf(path: Sequence[Any], leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        text = f"{leaf.dtype}[{','.join(map(str, np.shape(leaf)))}]"
        if getattr(leaf, "weak_type", False):
            text += " (weak)"
    elif isinstance(leaf, bool | int | float | complex):
        text = type(leaf).__name__
    else:
        text = repr(leaf)[:40]
    names = [getattr(key, "key", getattr(key, "name", None)) for key in path]
    name = next((name for name in reversed(names) if isinstance(name, str)), "")
    return f"{name} {text}".strip()
