"""What a container gets."""
