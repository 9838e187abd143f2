"""Nodes and Pods of the API as a cluster to place pods on. Nothing else of it is read, and nothing is written."""
