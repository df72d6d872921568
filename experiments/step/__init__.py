"""The training step against flax with optax and against torch, side by side in one run."""
