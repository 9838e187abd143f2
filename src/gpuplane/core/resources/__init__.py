"""Which resources and devices this machine offers, and what stays back and why."""
