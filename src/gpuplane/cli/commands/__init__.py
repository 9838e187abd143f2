"""One module or package a command: parse, call, print. What commands share is in `cli/kit`."""
