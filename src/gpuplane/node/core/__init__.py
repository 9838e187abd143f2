"""Every decision, pure: no I/O, no clock, no threads. Values in, values out; `now` is an argument."""
