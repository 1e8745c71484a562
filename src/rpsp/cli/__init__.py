"""The command line `rpsp`.

    entry.py      `main`: calls the command, handles signals, sets the exit code
    parsing.py    arguments to settings; mistakes to one-sentence errors
    printing.py   tables, progress lines, warnings, the JSON line
    training.py   train, resume
    sweeps.py     sweep, paper
    tuning.py     tune
    comparing.py  eval, compare, report
    belief.py     fit, inspect
    sharing.py    pack, push, pull, serve
    other.py      watch, export, methods, doctor

Modules that load numpy, jax or matplotlib are imported inside the commands. This keeps `rpsp --help` fast, and `main` can
set `OPENBLAS_NUM_THREADS` before numpy is loaded.
"""

from rpsp.cli.entry import main
from rpsp.cli.parsing import COMMANDS

__all__ = ["COMMANDS", "main"]
