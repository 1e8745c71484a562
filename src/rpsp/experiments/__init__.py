"""The lab: methods, configurations, runs, checkpoints, sweeps, statistics, figures and reports."""
