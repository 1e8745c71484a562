"""Episodes, batches, windows, recordings and the replay buffer. Independent of environments and models."""
