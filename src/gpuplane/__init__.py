"""GPUs for Kubernetes, from the driver to the request."""

__version__ = "0.1.0"
