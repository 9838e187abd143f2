"""What is shown of a node to Prometheus: pure views of a snapshot and a sample, and the text that carries them."""
