"""What the engine places pods on, and what reading finds in a cluster: nodes, requests, placements and pods, as values.

Nothing here needs NumPy.
"""
