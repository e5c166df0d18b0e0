"""The page of a run, from its training to what it says."""

from pathlib import Path

from tests.report.html_tree import parse, text

from softtriple.config import Config, with_settings
from softtriple.progress import Reporter
from softtriple.report.centers import count_centers
from softtriple.report.pictures import write_page
from softtriple.training.directory import RunDir
from softtriple.training.train import train


def test_the_page_counts_centers_as_the_verb_does(tmp_path: Path) -> None:
    config = with_settings(Config(dataset="digits"), ["train.epochs=1", "loss.centers_per_class=10"])
    outcome = train(config, RunDir(tmp_path), Reporter(quiet=True))
    write_page(outcome.run, {"SoftTriple": outcome}, "a test")
    distinct = count_centers(tmp_path).distinct
    cards = parse(outcome.run.page_file.read_text(encoding="utf-8")).findall(".//article")
    assert len(cards) == 6
    for card in cards:
        holding = len(card.findall(".//ol/li"))
        name, _, told = text(card.find("h4")).partition(" ")
        assert told == f"{holding} of {distinct[name]} distinct centres hold items"
