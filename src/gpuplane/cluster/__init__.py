"""What sees the whole cluster: placement decided (`engine`), a cluster read (`reading`), runs played (`simulation`)."""
