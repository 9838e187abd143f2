"""The node agent: the composition root, where watchers, servers and reconcilers meet over one Node."""
