"""The heads of a cascade, against the layers that the authors describe."""

import torch
import torch.nn.functional as F

from softtriple.models import Encoder
from softtriple.models.heads import Tap, TappedHeads, in_cells


def test_a_shallow_head_is_the_authors_on_a_grid_of_cells() -> None:
    torch.manual_seed(0)
    maps, vectors = torch.randn(3, 5, 8, 8), torch.randn(3, 7)
    heads = TappedHeads([Tap(5, 16), Tap(7, 1)], 6, dim=12).eval()
    deep = torch.randn(3, 6)
    found = heads(torch.cat([in_cells(maps), in_cells(vectors), deep], dim=1)).split(4, dim=1)
    for tapped, part, layers in zip((maps, vectors[:, :, None, None]), found, heads.heads, strict=False):
        _, reduce, _, _, hidden, _, last = layers
        cells = F.avg_pool2d(tapped, 2) if tapped.shape[2] > 1 else tapped
        x = F.conv2d(cells, reduce.weight[..., None], reduce.bias).relu().flatten(1)
        torch.testing.assert_close(part, F.normalize(last(hidden(x).relu()), dim=1))
    torch.testing.assert_close(found[2], F.normalize(heads.heads[2](deep), dim=1))


def test_a_shallow_head_sees_where_something_is() -> None:
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("conv-small", dim=6, heads=3).eval()
    tapped = torch.randn(2, 64, 8, 8).relu()
    turned = tapped.flip(-1)
    torch.testing.assert_close(tapped.mean(dim=(2, 3)), turned.mean(dim=(2, 3)))
    with torch.no_grad():
        difference = encoder.run_from(tapped, 2) - encoder.run_from(turned, 2)
    assert difference[:, :2].norm(dim=1).min() > 1e-3
