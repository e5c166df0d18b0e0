"""Classes added to a run without training, with centres computed from the embeddings of their items.

The centres are in a file of their own, ``added.safetensors``: the files that training wrote do not change.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float32
from torch import Tensor

from softtriple.errors import UserError
from softtriple.files import atomic_write
from softtriple.losses import Loss, SoftTripleLoss
from softtriple.models.weights import read_tensors, write_tensors
from softtriple.training.directory import RunDir

Centers = dict[str, Tensor]  # of shape (k, dim), by class name, in name order

_PREFIX = "class "  # safetensors does not allow an empty name


def check_can_add(loss: Loss) -> SoftTripleLoss:
    """``loss``, or UserError if classes cannot be added to it."""
    if not isinstance(loss, SoftTripleLoss):
        raise UserError(f"classes can be added to softtriple and softmax-norm, not to {type(loss).__name__}")
    return loss


def find_centers(loss: SoftTripleLoss, vectors: Float32[Tensor, "items dim"], names: Sequence[str]) -> Centers:
    """Centres of the classes ``names``, one name for each row of ``vectors``."""
    classes = sorted(set(names))
    number = {name: loss.num_classes + place for place, name in enumerate(classes)}
    grown = loss.add_classes(vectors.to(loss.centers.device), torch.tensor([number[name] for name in names]))
    return dict(zip(classes, grown.centers.detach()[loss.num_classes :], strict=True))


def extended(loss: Loss, trained: int, added: Mapping[str, Tensor]) -> Loss:
    """``loss`` with the centres of its first ``trained`` classes, then those of the ``added`` ones."""
    loss = check_can_add(loss)
    return loss.with_centers(torch.cat([loss.centers.detach()[:trained], torch.stack([*added.values()])]))


def write_added(directory: RunDir, added: Mapping[str, Tensor]) -> None:
    """Write the centres of all added classes."""
    with atomic_write(directory.added_file) as temporary:
        write_tensors(temporary, {_PREFIX + name: center.cpu().contiguous() for name, center in added.items()})


def read_added(directory: RunDir, dim: int) -> Centers:
    """The centres of the added classes; empty if there are none."""
    if not directory.added_file.is_file():
        return {}
    tensors = read_tensors(directory.added_file)
    shapes = {tuple(center.shape) for center in tensors.values()}
    named = all(name.startswith(_PREFIX) for name in tensors)
    if not (tensors and named and len(shapes) == 1 and all(len(shape) == 2 and shape[1] == dim for shape in shapes)):
        raise UserError(f"{directory.added_file}: expected centres of {dim} dimensions for each added class")
    return {name.removeprefix(_PREFIX): tensors[name] for name in sorted(tensors)}
