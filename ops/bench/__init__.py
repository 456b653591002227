from pathlib import Path

#: The checkout: the working directory of processes that are started with `python -m`, which imports from it first.
ROOT = Path(__file__).resolve().parents[2]
