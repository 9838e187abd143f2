"""Partitions of GPUs: which layouts there can be, and the way from one to another."""
