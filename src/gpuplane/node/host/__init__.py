"""This node's files and processes."""
