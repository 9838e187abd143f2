"""What commands share: how they end, what they print, and how they reach an agent, a machine and a cluster."""
