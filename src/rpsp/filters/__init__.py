"""One file per belief: the module and how it is fitted. Knows no reward."""
