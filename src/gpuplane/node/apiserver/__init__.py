"""The API server: what our Node object requests, and the condition and Events that we write."""
