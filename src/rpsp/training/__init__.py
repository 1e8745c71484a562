"""Algorithm 1 of the paper: acting, rollouts, the training loop, and several runs at once."""
