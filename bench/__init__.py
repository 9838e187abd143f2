"""The budgets, measured: `make bench`, `make bench ONLY=node`, `make bench JSON=1`.

A time of computation is compared with a reference of the same run (`reference`); a time of waiting stays in seconds.
Exits 1 where a budget is missed.
"""
