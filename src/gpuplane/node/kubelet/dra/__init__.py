"""The DRA driver that kubelet knows: its registration, claims that it prepares, and the health of their devices."""
