"""Filters, one file per kind: the module and the functions that fit it. Independent of rewards."""
