"""A played node: it speaks to an API server as kubelet does, and has its devices by the embedded kubelet."""
