"""Which GPU of which node a pod gets, with the whole cluster in view.

The engine is pure: a `Cluster` (arrays of what is free), a `Request`, a policy, and out comes a `Placement`. NumPy is
imported here and by those above, and needs `gpuplane[placement]`.
"""
