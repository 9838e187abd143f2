"""A machine that a file describes: what the driver of such a machine would show, fail at and change."""
