"""What a target comes out as: a sheet, the numbers behind it, and a figure where there is one; and their files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from softtriple.files import appearing_file, write_whole
from softtriple.papers.figures import png, svg
from softtriple.papers.sheets import Sheet, to_html, to_markdown


@dataclass(frozen=True, eq=False)
class Result:
    """A target made; ``lacking`` says why where nothing at all could be run."""

    sheet: Sheet
    numbers: dict[str, Any] = field(default_factory=dict)
    figure: Figure | None = None
    lacking: str = ""


def write_result(result: Result, out: Path, name: str) -> tuple[Path, ...]:
    """Write ``name``.md and ``name``.html in ``out``, and the figure as SVG and PNG; the files."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {kind: out / f"{name}.{kind}" for kind in ("md", "html", "svg", "png")}
    if result.figure is None:
        write_whole(paths["md"], to_markdown(result.sheet))
        write_whole(paths["html"], to_html(result.sheet))
        return paths["md"], paths["html"]
    drawn = svg(result.figure)
    for kind, content in (("svg", drawn), ("png", png(result.figure))):
        with appearing_file(paths[kind]) as temporary:
            temporary.write_bytes(content)
    write_whole(paths["md"], to_markdown(result.sheet, [paths["svg"].name]))
    write_whole(paths["html"], to_html(result.sheet, [drawn]))
    return tuple(paths.values())
