"""Training the recogniser: steps, loop, checkpoints. Needs the extra `handwriting`."""
