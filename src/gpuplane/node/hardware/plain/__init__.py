"""Devices without a driver library: device nodes that a file names."""
