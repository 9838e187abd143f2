"""What one of our programs writes into an object of Kubernetes, and another reads."""
