"""The configuration files of this node's container runtime: read as the runtime reads them, changed, put back."""
