"""What is there to give out: units, the resources that they are named as, and how they are shared."""
