"""What a container runtime's configuration needs so that it takes CDI devices: texts in, texts out."""
