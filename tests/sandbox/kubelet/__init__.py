"""Tests of the embedded kubelet's DRA manager."""
