"""Recurrent predictive state policy networks."""
