"""Environments: tasks, disturbances, guards and vector environments. Independent of learning."""
