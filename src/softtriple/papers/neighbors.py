"""Retrieved examples: queries with their neighbours by the normalised softmax and by SoftTriple."""

from collections.abc import Sequence

from softtriple.config import Config
from softtriple.papers.figures import draw_retrieved
from softtriple.papers.published import read_published
from softtriple.papers.recipes import recipe
from softtriple.papers.results import Result
from softtriple.papers.runs import Study, facts, lacking_notes, measure, nothing_ran, select
from softtriple.papers.sheets import Block, Line, Sheet
from softtriple.progress import Reporter
from softtriple.report.page import Retrieved
from softtriple.report.pictures import retrieved
from softtriple.training.directory import RunDir
from softtriple.training.train import Outcome, train

NUM_QUERIES = 6
NUM_NEIGHBORS = 4
LOSSES = ("softmax-norm", "softtriple")


def make_retrieved(study: Study, wanted: Sequence[str] | None) -> Result:
    """The nearest neighbours of a few test items, for the two methods of the paper's figure."""
    table = read_published()["table1"]
    rows = {row.name: row for row in table.rows if row.loss in LOSSES}
    chosen = select(rows, wanted)
    measured = measure(study, {name: recipe(table, row) for name, row in chosen.items()}, examples_of)
    answers = {row.method: measured[name].values[0] for name, row in chosen.items() if measured[name].values}
    right = {method: _share_right(found) for method, found in answers.items()}
    sheet = Sheet(
        title="Retrieved examples",
        facts=facts(study, measured),
        columns=("of the query's class",),
        blocks=tuple(Block(method, (Line("neighbours shown", (share,)),)) for method, share in right.items()),
        notes=(
            f"{NUM_QUERIES} test items drawn at random, the same for both methods, and their {NUM_NEIGHBORS} nearest"
            " other ones, best first. A red box with a cross: another class than the query's.",
            *lacking_notes(measured),
        ),
    )
    return Result(
        sheet, numbers=dict(right), figure=draw_retrieved(answers) if answers else None, lacking=nothing_ran(measured)
    )


def examples_of(config: Config, run: RunDir, reporter: Reporter) -> tuple[Retrieved, ...]:
    """The examples of a run, which is trained first if it is not finished."""
    outcome: Outcome = train(config, run, reporter, resume=True)
    return retrieved(outcome.test, outcome.benchmark.test, num_queries=NUM_QUERIES, num_neighbors=NUM_NEIGHBORS)


def _share_right(examples: Sequence[Retrieved]) -> str:
    found = [neighbor.same_class for query in examples for neighbor in query.found]
    return f"{sum(found)} of {len(found)}"
