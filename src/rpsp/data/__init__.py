"""Episodes, batches, windows, recordings, replay. Knows no environment and no model."""
