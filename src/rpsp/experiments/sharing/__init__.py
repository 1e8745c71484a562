"""Sharing of trained agents: one file with a model card, and the Hugging Face hub. `rpsp.experiments.packs` is the file.

- `packing`: `rpsp pack`.
- `cards`: the model card.
- `hub`: `rpsp push` and `rpsp pull`.
"""
