import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))  # its notebooks.py
