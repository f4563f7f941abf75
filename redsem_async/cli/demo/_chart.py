"""The chart: requests asked of the upstream at once, and the limit. A PNG, or characters."""

import tempfile
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from ._record import Record


def make_folder(folder: Path) -> None:
    """Make *folder* where the chart will be drawn.

    Raises:
        OSError: it cannot be made, or files cannot be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def chart_of(record: Record, console: Console, folder: Path | None) -> Path | None:
    """Draw a PNG into *folder* and return its path; without matplotlib, print a chart."""
    console.print()
    if find_spec("matplotlib") is None:
        from ._terminal_chart import print_chart

        print_chart(record, console)
        return None
    from ._png_chart import save_chart

    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="redsem-demo-"))
    path = folder / "redsem-demo.png"
    save_chart(record, path)
    console.print(f"chart: {path}", soft_wrap=True, markup=False)
    return path
