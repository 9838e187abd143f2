"""Answers to kubelet's Allocate."""
