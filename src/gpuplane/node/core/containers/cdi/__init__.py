"""CDI: the specifications that tell container runtimes what a container gets with a device."""
