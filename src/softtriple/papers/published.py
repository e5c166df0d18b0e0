"""The tables of the paper, read from ``published.toml``."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class DataSet:
    """A data set of the tables: its name on the command line and in prose, and where to get it."""

    name: str
    title: str
    usual: str  # data source with the folder that its archive unpacks to
    source: str


@dataclass(frozen=True)
class PublishedRow:
    """A method and its numbers in per cent, in the order of the columns; None where nothing is printed."""

    loss: str
    method: str
    dim: int
    values: tuple[float | None, ...]
    note: str = ""

    @property
    def name(self) -> str:
        """The name of its runs and of its file in ``configs/``; tables of the same data set differ in dimension."""
        return f"{self.loss}_{self.dim}"


@dataclass(frozen=True)
class PublishedTable:
    """A table with rows and columns as printed."""

    name: str
    caption: str
    data: DataSet
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]


def read_published() -> dict[str, PublishedTable]:
    """The six tables by name, ``table1`` to ``table6``."""
    content = tomllib.loads(files("softtriple.papers").joinpath("published.toml").read_text("utf-8"))
    data = {name: DataSet(name, **described) for name, described in content.pop("data").items()}
    return {
        name: PublishedTable(
            name=name,
            caption=table["caption"],
            data=data[table["data"]],
            columns=tuple(table["columns"]),
            rows=tuple(
                PublishedRow(
                    loss=loss,
                    method=row["method"],
                    dim=row["dim"],
                    values=tuple(None if value == "-" else value for value in row["values"]),
                    note=row.get("note", ""),
                )
                for loss, row in table["rows"].items()
            ),
        )
        for name, table in content.items()
    }
