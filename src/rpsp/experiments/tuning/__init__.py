"""`rpsp tune`: search for settings with Optuna.

- `spaces`: the values to try, as data.
- `study`: trials in stages, each with several seeds; pruning, resumption and the comparison on new seeds.
- `page`: the report page.
"""
