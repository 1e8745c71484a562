"""One file per algorithm: what changes an agent. Knows no filter by name."""
