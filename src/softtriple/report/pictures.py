"""Items as pictures: thumbnails, and a few queries with what is nearest to them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch.nn.functional as F
from jaxtyping import Int64, UInt8
from PIL import Image
from torch import Tensor

from softtriple.data import ImageArray, ImageFiles, ImageList, Split, Texts, decode_image
from softtriple.data.images import center_crop, resize_short_side
from softtriple.data.sampling import stream
from softtriple.files import write_whole
from softtriple.losses import SoftTripleLoss
from softtriple.losses.centers import MERGED, merge_groups
from softtriple.metrics.evaluate import Embeddings
from softtriple.models.features import embed_feed
from softtriple.report.page import CenterGroup, ClassCenters, Found, Method, Page, Retrieved, render_page
from softtriple.search import nearest
from softtriple.training.directory import RunDir
from softtriple.training.inference import still_feed
from softtriple.training.train import Outcome

Picture = UInt8[np.ndarray, "height width 3"] | str

THUMBNAIL = 96
MOST_CHARACTERS = 160


def picture(split: Split, row: int) -> Picture:
    """The item in ``row`` as a small RGB image; a short text where items are texts or vectors."""
    match split.items:
        case ImageFiles(paths):
            image = center_crop(resize_short_side(decode_image(paths[row]), THUMBNAIL), THUMBNAIL)
            return np.asarray(image)
        case ImageArray(pixels) | ImageList(pixels):
            return np.asarray(Image.fromarray(pixels[row]).convert("RGB"))
        case Texts(values):
            text = values[row]
            return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1].rstrip()}…"
        case _:
            return f"row {row}"


def retrieved(found: Embeddings, split: Split, *, num_queries: int, num_neighbors: int) -> tuple[Retrieved, ...]:
    """A few items of ``split``, drawn at random but the same for every method, with their nearest neighbours."""
    rows = np.sort(stream("queries to show", 0).permutation(len(split))[:num_queries])
    queries = found.vectors[rows]
    neighbors = nearest(queries, found.vectors, num_neighbors + 1)
    shown = []
    for query, candidates, scores in zip(
        rows.tolist(), neighbors.rows.tolist(), neighbors.scores.tolist(), strict=True
    ):
        others = [(row, score) for row, score in zip(candidates, scores, strict=True) if row != query][:num_neighbors]
        shown.append(
            Retrieved(
                picture=picture(split, query),
                class_name=_name(found, query),
                found=tuple(
                    Found(picture(split, row), _name(found, row), score, bool(found.labels[row] == found.labels[query]))
                    for row, score in others
                ),
            )
        )
    return tuple(shown)


def _name(found: Embeddings, row: int) -> str:
    return found.class_name(int(found.labels[row]))


NUM_QUERIES = 8
NUM_NEIGHBORS = 4
NUM_CLASSES = 6
PICTURES_PER_CENTER = 8


def write_page(
    run: RunDir, outcomes: Mapping[str, Outcome], command: str, facts: Sequence[tuple[str, str]] = ()
) -> None:
    """Write ``report.html`` of one run, or of several methods on the same data."""
    first = next(iter(outcomes.values()))
    model, train = first.config.model, first.config.train
    told = [
        ("Data", "; ".join(first.benchmark.notes)),
        ("Encoder", f"{model.backbone}, {model.dim} dimensions, trained: {model.trainable}"),
        ("Training", f"{train.epochs} epochs, batch {train.batch_size}, seed {train.seed}"),
        ("Command", command),
        *facts,
    ]
    methods = tuple(_method(name, outcome) for name, outcome in outcomes.items())
    write_whole(run.page_file, render_page(Page(f"softtriple on {first.benchmark.name}", tuple(told), methods)))


def method_name(outcome: Outcome) -> str:
    """The loss and its number of centres, as a heading."""
    loss = outcome.config.loss
    return loss.name if loss.centers_per_class == "auto" else f"{loss.name}, K = {loss.centers_per_class}"


def _method(name: str, outcome: Outcome) -> Method:
    epochs = [entry for entry in outcome.run.read_log() if "batch" not in entry]
    loss = outcome.loss
    distinct = loss.distinct_centers().tolist() if isinstance(loss, SoftTripleLoss) else []
    return Method(
        name=name,
        report=outcome.report,
        losses=tuple(entry["loss"] for entry in epochs),
        distinct_centers=tuple(distinct),
        retrieved=retrieved(outcome.test, outcome.benchmark.test, num_queries=NUM_QUERIES, num_neighbors=NUM_NEIGHBORS),
        classes=_classes(outcome, loss) if isinstance(loss, SoftTripleLoss) and loss.centers.shape[1] > 1 else (),
    )


def _classes(outcome: Outcome, loss: SoftTripleLoss) -> tuple[ClassCenters, ...]:
    """The classes with most distinct centres, and the training items that are nearest to each of these."""
    leaders = merge_groups(F.normalize(loss.centers.detach().cpu(), dim=-1), MERGED)
    distinct = loss.distinct_centers().cpu()
    return tuple(
        ClassCenters(
            outcome.encoder.class_names[number],
            int(distinct[number]),
            _groups(outcome, loss, number, leaders[number]),
        )
        for number in distinct.argsort(descending=True, stable=True)[:NUM_CLASSES].tolist()
    )


def _groups(
    outcome: Outcome, loss: SoftTripleLoss, number: int, leaders: Int64[Tensor, " k"]
) -> tuple[CenterGroup, ...]:
    rows = np.flatnonzero(outcome.learned.labels == number)
    items = outcome.learned.take(rows)
    device = loss.centers.device
    vectors = embed_feed(outcome.encoder, still_feed(outcome.encoder, items), device=device)
    similarity = vectors @ F.normalize(loss.centers[number].detach().cpu(), dim=-1).T
    nearest_group = leaders[similarity.argmax(dim=1)].numpy()
    groups = []
    for leader in np.unique(nearest_group):
        members = np.flatnonzero(nearest_group == leader)
        pictures = tuple(picture(items, row) for row in members[:PICTURES_PER_CENTER].tolist())
        groups.append(CenterGroup(len(members), pictures))
    return tuple(sorted(groups, key=lambda group: -group.count))
