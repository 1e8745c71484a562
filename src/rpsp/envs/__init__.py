"""What is stepped: tasks, disturbances, guards, vector environments. Knows no learning."""
