"""What the sandbox needs of an API server: objects with versions, lists, watches and patches over real HTTP."""
