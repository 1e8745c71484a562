"""Callbacks of a run: evaluation, stopping, videos, loggers. Their public home is `rpsp.callbacks`."""
