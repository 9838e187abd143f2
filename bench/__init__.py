"""The budgets, measured: `make bench`, `make bench ONLY=node`, `make bench JSON=1`.

Ratios in one run where a ratio serves; absolute figures are for a machine of two cores. Exits 1 where one is missed.
"""
