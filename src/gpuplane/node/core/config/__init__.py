"""What the admin asked for: NVIDIA's v1 file, flags and environment become `Settings`."""
