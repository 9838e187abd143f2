"""The CDI specifications of this node: files that container runtimes read whenever they create a container."""
