"""The changes that a container runtime's configuration needs so that the runtime supports CDI devices."""
