"""The map: items in the plane, by a UMAP layout or by principal components."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from softtriple.gallery.analysis import CenterGroup, Snapshot
from softtriple.gallery.layout import UmapLayout, rounded
from softtriple.gallery.schemas import MapAnswer, MapState, Method


def map_answer(snapshot: Snapshot, method: Method, state: MapState, layout: UmapLayout) -> MapAnswer:
    """The items on the map as columns, placed by ``method``."""
    umap = method == "umap"
    points = layout.points(snapshot.digest) if umap else snapshot.projection.points
    return MapAnswer(
        version=state.version,
        umap=state.umap,
        method=method,
        x=rounded(points[:, 0]),
        y=rounded(points[:, 1]),
        labels=snapshot.labels[snapshot.map_rows].tolist(),
        class_names=list(snapshot.class_names),
        explained=None if umap else snapshot.projection.explained,
        total=snapshot.total,
    )


def center_column(
    snapshot: Snapshot, groups: Callable[[str], list[CenterGroup]]
) -> tuple[Int[Tensor, " items"], list[str]]:
    """The centre of each item by its place on the page of the class, which ``groups`` lists; -1 without any."""
    values = torch.full((len(snapshot.items),), -1)
    for name in snapshot.class_names:
        for number, group in enumerate(groups(name)):
            values[group.rows] = number
    return values, [f"Centre {number + 1}" for number in range(int(values.max()) + 1 if len(values) else 0)]
