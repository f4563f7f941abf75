"""The README's examples run as they stand, but for the server's address."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.servers import complaints

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_has_examples() -> None:
    """A pattern that finds nothing would pass them all."""
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs(number: int, server_url: str, name: str) -> None:
    """It is the first thing that anybody tries."""
    example = EXAMPLES[number].replace("redis://localhost:6379", server_url)
    for known in ("openai", "gpu"):
        example = example.replace(f'"{known}"', repr(name))
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    unexpected = [line for line in complaints(done.stderr) if "was lost" not in line]
    assert (done.returncode, unexpected) == (0, [])
    assert done.stdout or "print(" not in example
