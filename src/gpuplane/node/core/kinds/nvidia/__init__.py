"""NVIDIA's GPUs and their MIG devices: the first kind, and the only one with a driver."""
