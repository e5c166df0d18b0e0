"""A small gallery of pictures on disk with its encoder and its centres, and a server to show it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from tests.gallery.memory_store import MemoryStore
from torch import Tensor

from softtriple.gallery import Settings, create_app
from softtriple.gallery.server import Server, listen
from softtriple.metrics import Calibration, Embeddings, calibrate
from softtriple.models import Encoder, EncoderConfig
from softtriple.search import Item

# A name that would be trouble in HTML, in an address, or in both.
HOSTILE = 'red/<img src=x onerror=alert(1)>&"50%"'
COLORS = {"blue": (30, 60, 200), "green": (20, 150, 60), HOSTILE: (200, 40, 40)}
PER_CLASS = 8


@dataclass(frozen=True)
class Collection:
    folder: Path
    encoder: Encoder
    store: MemoryStore
    centers: Tensor
    ids: tuple[str, ...]

    def app(self, settings: Settings | None = None, **options):
        return create_app(self.encoder, self.store, self.centers, settings, **options)


def make_collection(folder: Path) -> Collection:
    """Discs of three colours. The first blue picture is also there as a green one: a wrong label, to be found."""
    random = np.random.default_rng(0)
    items = []
    for label, (class_name, color) in enumerate(COLORS.items()):
        for number in range(PER_CLASS):
            path = folder / f"{label}-{number}.png"
            draw_disc(color, random).save(path)
            items.append(Item(f"set/{label}-{number}.png", label, class_name, str(path)))
    items.append(Item("set/mislabelled.png", 1, "green", items[0].source))
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(backbone="conv-small", dim=8), class_names=("blue", "green")).eval()
    vectors = torch.from_numpy(encoder.embed([item.source for item in items]))
    # Blue: two centres in one place and one apart. Green: three apart.
    blue, green = vectors[:PER_CLASS], vectors[PER_CLASS : 2 * PER_CLASS]
    centers = torch.stack(
        [torch.stack([blue[0], blue[0], -blue[0]]), torch.stack([green[0], -green[0], green.roll(1, 1)[0]])]
    )
    return Collection(folder, encoder, MemoryStore(items, vectors.numpy()), centers, tuple(item.id for item in items))


def make_calibration() -> Calibration:
    """One whose threshold is above any similarity in the collection but that of a copy."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    values = random.standard_normal((8, 4))[labels] + 0.01 * random.standard_normal((48, 4))
    made = calibrate(Embeddings(torch.from_numpy(values).float(), torch.from_numpy(labels)), source="test classes")
    sizes = tuple(replace(size, threshold=0.99999, slope=10.0, intercept=-9.0) for size in made.sizes)
    return replace(made, sizes=sizes)


def draw_disc(color: tuple[int, int, int], random: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (72, 72), (240, 240, 235))
    x, y = random.integers(10, 26, size=2).tolist()
    ImageDraw.Draw(image).ellipse((x, y, x + 36, y + 36), fill=color)
    return image


@contextmanager
def running(app, settings: Settings | None = None) -> Iterator[str]:
    """The address of a server of ``app``."""
    with listen("127.0.0.1", 0) as listening:
        server = Server(app, settings or Settings())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
