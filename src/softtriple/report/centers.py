"""``softtriple centers``: how many centres of each class are still distinct, as a table and a chart."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from softtriple.files import appearing_file
from softtriple.losses import build_loss
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.models import Encoder
from softtriple.papers.figures import draw_centers, png, svg
from softtriple.progress import one_line
from softtriple.training.directory import RunDir
from softtriple.training.inference import read_centers


@dataclass(frozen=True)
class CenterCounts:
    """The distinct centres of each class, most first; each class started with ``most``."""

    distinct: dict[str, int]
    most: int

    @property
    def mean(self) -> float:
        """Distinct centres per class."""
        return sum(self.distinct.values()) / len(self.distinct)


def count_centers(run: Path) -> CenterCounts:
    """Count the centres that the loss of a run has learned, those that merged once."""
    encoder = Encoder.load(run)
    centers = read_centers(RunDir(run), encoder)
    if centers is None:
        loss = RunDir(run).read_config().loss
        built = build_loss(loss.name, len(encoder.class_names), encoder.dim, **loss.options)
        if built.centers is not None:
            raise ValueError(f"{RunDir(run).centers_file}: it is missing, or not of the classes of this run")
        raise ValueError(f"{run}: the loss {loss.name} has no centres to count; softtriple has")
    counts = count_distinct(centers, MERGED).tolist()
    ordered = sorted(zip(encoder.class_names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return CenterCounts(dict(ordered), centers.shape[1])


def text(counts: CenterCounts) -> str:
    """A line for each class, and how many classes have how many centres."""
    shown = [(one_line(name), count) for name, count in counts.distinct.items()]
    width = max(len("class"), *(len(name) for name, _ in shown))
    lines = [f"{'class':<{width}}  distinct centres"]
    lines += [f"{name:<{width}}  {count:>3}  {'●' * count}" for name, count in shown]
    by_count = sorted(Counter(counts.distinct.values()).items(), reverse=True)
    shares = ", ".join(f"{count} in {classes}" for count, classes in by_count)
    lines.append(
        f"\n{len(counts.distinct)} classes, {counts.mean:.1f} of {counts.most} centres distinct on average: {shares}"
    )
    return "\n".join(lines)


def draw(counts: CenterCounts, file: Path) -> None:
    """Draw the counts to a .svg or .png file."""
    writers = {".svg": svg, ".png": png}
    if file.suffix not in writers:
        raise ValueError(f"{file}: a chart is written as .svg or .png")
    figure = draw_centers(
        {f"{len(counts.distinct)} classes": [float(n) for n in counts.distinct.values()]}, counts.most
    )
    with appearing_file(file) as temporary:
        temporary.write_bytes(writers[file.suffix](figure))
