"""Everything that is said to kubelet, over its own sockets."""
