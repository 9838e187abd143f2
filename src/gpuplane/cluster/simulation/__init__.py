"""What a policy does with a cluster and its pods, without either: pods arrive in a random order, and are placed.

A run is a pure function: (nodes, pods, policy, seed, scenario) → figures. `trace` reads nodes and pods of CSV files;
whoever has them from elsewhere gives them as values. `workers` plays runs on all cores.
"""
