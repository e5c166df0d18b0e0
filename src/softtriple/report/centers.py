"""``softtriple centers``: the number of distinct centres of each class, as a table and as a chart."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from softtriple.errors import UserError, counted
from softtriple.files import atomic_write
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.progress import one_line
from softtriple.report.charts import draw_centers, png, svg
from softtriple.training import Run


@dataclass(frozen=True)
class CenterCounts:
    """The number of distinct centres by class, in decreasing order; each class started with ``most``."""

    distinct: dict[str, int]
    most: int

    @property
    def mean(self) -> float:
        """Distinct centres per class."""
        return sum(self.distinct.values()) / len(self.distinct)


def count_centers(run: Run) -> CenterCounts:
    """Count the centres that the loss of ``run`` has learned; merged centres count once."""
    centers = run.centers()
    if centers is None:
        raise UserError(f"the loss {run.config.loss.name} has no centres to count; losses with centres: softtriple")
    counts = count_distinct(centers, MERGED).tolist()
    ordered = sorted(zip(run.encoder.class_names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return CenterCounts(dict(ordered), centers.shape[1])


def text(counts: CenterCounts) -> str:
    """One line per class, then the number of classes by number of distinct centres."""
    shown = [(one_line(name), count) for name, count in counts.distinct.items()]
    width = max(len("class"), *(len(name) for name, _ in shown))
    lines = [f"{'class':<{width}}  distinct centres"]
    lines += [f"{name:<{width}}  {count:>3}  {'●' * count}" for name, count in shown]
    by_count = sorted(Counter(counts.distinct.values()).items(), reverse=True)
    shares = ", ".join(f"{count} in {classes}" for count, classes in by_count)
    classes = counted(len(counts.distinct), "class")
    lines.append(f"\n{classes}, {counts.mean:.1f} of {counts.most} centres distinct on average: {shares}")
    return "\n".join(lines)


def draw(counts: CenterCounts, file: Path) -> None:
    """Draw the counts to a .svg or .png file."""
    writers = {".svg": svg, ".png": png}
    if file.suffix not in writers:
        raise UserError(f"{file}: unknown image format {file.suffix!r}; use .svg or .png")
    panel = {counted(len(counts.distinct), "class"): [float(count) for count in counts.distinct.values()]}
    with atomic_write(file) as temporary:
        temporary.write_bytes(writers[file.suffix](draw_centers(panel, counts.most)))
