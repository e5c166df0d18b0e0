"""The recipes of the rows, and the files in configs/ that state them."""

from pathlib import Path

import pytest

from softtriple.config import read_config
from softtriple.losses import build_loss
from softtriple.papers.hdc import HDCLoss
from softtriple.papers.published import read_published
from softtriple.papers.recipes import config_files, recipe, softtriple_recipe

CONFIGS = Path(__file__).parents[2] / "configs"
ROWS = [(table, row) for table in read_published().values() for row in table.rows]


def test_configs_are_what_the_recipes_say() -> None:
    written = {str(file.relative_to(CONFIGS)): file.read_text(encoding="utf-8") for file in CONFIGS.rglob("*.toml")}
    assert written == config_files(), "write them with: python -m softtriple.papers.recipes configs"
    assert len(written) == 36


@pytest.mark.parametrize(("table", "row"), ROWS, ids=lambda value: value.name)
def test_each_config_loads_and_says_what_it_is(table, row) -> None:
    file = CONFIGS / table.data.name / f"{row.name}.toml"
    config = read_config(file)
    assert config == recipe(table, row)
    assert (config.loss.name, config.model.dim, config.model.backbone) == (row.loss, row.dim, "bn-inception")
    if row.loss == "hdc":
        HDCLoss(6, row.dim, **config.loss.options)  # it has all of these options
    else:
        build_loss(config.loss.name, 6, row.dim, **config.loss.options)
    head = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert f"{row.values[0]}" in head[1]
    assert f"Table {table.name[-1]}" in head[1]
    assert ("ResNet50" in head[1]) == (row.loss == "margin")
    # HDC has an encoder of its own, so that only reproduce can run it.
    assert any(f"--config configs/{table.data.name}/{row.name}.toml" in line for line in head) == (row.loss != "hdc")
    assert any(f"softtriple reproduce {table.name}" in line for line in head)


def test_softtriple_is_trained_as_the_paper_says() -> None:
    config = softtriple_recipe()
    assert config.loss.centers_per_class == 10
    assert config.loss.options == {"scale": 20.0, "gamma": 0.1, "margin": 0.01, "tau": 0.2}
    assert (config.train.epochs, config.train.batch_size, config.train.milestones) == (50, 32, (20, 40))
    assert (config.train.lr, config.train.center_lr) == (1e-4, 1e-2)
    table = read_published()["table5"]
    products = recipe(table, table.rows[-1])
    assert (products.loss.centers_per_class, products.loss.options["tau"], products.train.center_lr) == (2, 0.0, 0.1)
    assert products.model.freeze_batch_norm == "off"
