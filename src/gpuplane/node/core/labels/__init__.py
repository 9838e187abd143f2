"""Labels that say on our Node object what GPUs it has: NVIDIA's names, and ours for what NVIDIA has no name for."""
