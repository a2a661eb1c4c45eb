import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "importers"))
sys.path.insert(0, str(Path(__file__).parent))
