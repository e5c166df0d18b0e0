"""The report page, read back from its HTML."""

import base64
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from tests.report.html_tree import parse, text

from softtriple.data import make_benchmark
from softtriple.errors import UserError
from softtriple.metrics import ClassResult, KMeansRuns, Report
from softtriple.progress import Reporter
from softtriple.report import write_page
from softtriple.report.centers import count_centers
from softtriple.report.page import Page, render_page
from softtriple.report.pictures import CenterGroup, ClassCenters, Neighbor, Query
from softtriple.report.tables import Method
from softtriple.training import Run, train
from softtriple.training import run as run_module
from softtriple.training.baseline import verdict
from softtriple.training.trials import Gain

LOSSES = ("softtriple", "semi-hard")

RANDOM = np.random.default_rng(0)
GLYPH = RANDOM.integers(256, size=(32, 24, 3), dtype=np.uint8)
PHOTO = RANDOM.integers(256, size=(300, 200, 3), dtype=np.uint8)
DRAWING = np.kron(np.eye(2, dtype=np.uint8)[..., None], np.full((60, 60, 3), 255, np.uint8))


def per_class(**recall: float) -> dict[str, ClassResult]:
    return {name: ClassResult(queries=4, recall_at_1=share, map_at_r=share) for name, share in recall.items()}


REPORT = Report(
    recall={1: 0.5, 8: 0.75},
    precision_at_1=0.5,
    r_precision=0.25,
    map_at_r=0.125,
    nmi=0.6,
    ami=0.4,
    num_queries=8,
    num_gallery=9,
    num_classes=2,
    kmeans=KMeansRuns(seed=0, restarts=5, objective=1.5, nmi_spread=0.01, ami_spread=0.02),
    intervals={"recall@1": (0.4, 0.6)},
    per_class=per_class(a=0.25, b=0.75),
)
BARE = replace(REPORT, nmi=None, ami=None, kmeans=None, intervals={}, per_class={})


def queries(*same_class, picture=GLYPH):
    neighbors = tuple(Neighbor(picture, "a" if same else "b", 0.875, same) for same in same_class)
    return (Query(picture, "a", neighbors),)


CENTERS = (ClassCenters("a", 3, (CenterGroup(7, (GLYPH, GLYPH)), CenterGroup(1, ("a text",)))),)
SOFTTRIPLE = Method("SoftTriple", REPORT, (3.0, 2.0, 1.5), (1, 2, 2), queries(True, True, False), CENTERS)
SOFTMAX = Method(
    "Softmax", replace(REPORT, map_at_r=0.25, r_precision=0.25), (2.0, 1.0), (), queries(False, True, False)
)
PAGE = Page("Glyphs", (("data", "letters"), ("time", "58 s")), (SOFTTRIPLE, SOFTMAX))
NOTHING = Method("Bare", BARE, (), (), ())


def page_of(*methods):
    return parse(render_page(Page("", (), methods)))


def table_rows(tree, number=0):
    table = tree.findall(".//table")[number]
    return [[text(cell) for cell in row] for row in table.iter("tr")]


def headings(tree):
    return [text(heading) for heading in tree.iter("h2")]


def test_page_stands_alone():
    tree = parse(render_page(PAGE))
    assert tree.get("lang") == "en"
    for element in tree.iter():
        assert element.tag not in {"script", "link", "iframe", "object", "base"}
        assert element.get("src", "data:").startswith("data:")
        assert element.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in element.keys())  # noqa: SIM118  (an Element is no dict)
    assert "http" not in render_page(PAGE).replace("http-equiv", "")
    assert "@import" not in text(tree.find(".//style"))


def test_ids_are_unique_and_references_lead_somewhere():
    tree = parse(render_page(PAGE))
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    references = [element.get("href")[1:] for element in tree.iter() if element.get("href")]
    clips = [element.get("clip-path")[5:-1] for element in tree.iter() if element.get("clip-path")]
    assert len(set(ids)) == len(ids)
    assert references
    assert clips
    assert set(references) | set(clips) <= set(ids)


def test_same_page_gives_the_same_text():
    assert render_page(PAGE) == render_page(PAGE)


def with_shares(recall_at_1: float, map_at_r: float, **changes: object) -> Report:
    """A report of two classes of four queries, equally hard."""
    result = ClassResult(queries=4, recall_at_1=recall_at_1, map_at_r=map_at_r)
    shares = {"recall": {1: recall_at_1}, "precision_at_1": recall_at_1, "map_at_r": map_at_r}
    return replace(BARE, **shares, per_class={"a": result, "b": result}, **changes)


def compared(trained: Report, **baselines: Report):
    return page_of(replace(NOTHING, report=trained, baselines=baselines))


def verdicts(tree):
    return [text(sentence) for sentence in tree.findall(".//p[@class='verdict']")]


def test_the_baseline_and_the_paired_difference_to_it_stand_beside_the_result():
    trained = with_shares(0.75, 0.5, accuracy=0.875, nmi=0.25)
    tree = compared(trained, features=with_shares(0.5, 0.375, nmi=0.5), pca=with_shares(0.25, 0.125, nmi=0.125))
    assert table_rows(tree) == [
        ["", "trained", "features", "difference", "pca"],
        ["Recall@1", "75.00", "50.00", "+25.00 +25.00 to +25.00", "25.00"],
        ["MAP@R", "50.00", "37.50", "+12.50 +12.50 to +12.50", "12.50"],
        ["R-precision", "25.00", "25.00", "+0.00", "25.00"],
        ["NMI", "25.00", "50.00", "−25.00", "12.50"],
        ["Accuracy", "87.50", "–", "–", "–"],
    ]
    assert headings(tree)[0] == "Retrieval and clustering"
    (sentence,) = verdicts(tree)
    assert "25.0 points more at R@1 (95 % interval +25.0 to +25.0) than features" in sentence


def test_training_that_did_not_help_is_said_first():
    baseline, trained = with_shares(0.5, 0.375), with_shares(0.25, 0.375)
    (told,) = verdicts(compared(trained, features=baseline))
    assert told.replace("−", "-") == verdict(baseline, trained)
    assert "R@1 −25.0" in told, "a minus sign, as in the table"


def test_a_saturated_baseline_is_beaten_in_map_at_r():
    (sentence,) = verdicts(compared(with_shares(1.0, 0.75), features=with_shares(1.0, 0.5)))
    assert "25.0 points at MAP@R (95 % interval +25.0 to +25.0)" in sentence
    assert "already 100.0 and changes by +0.0 (+0.0 to +0.0)" in sentence


def test_several_methods_are_compared_with_the_baseline_of_the_first():
    first = replace(NOTHING, report=with_shares(0.75, 0.5), baselines={"features": with_shares(0.5, 0.25)})
    second = replace(NOTHING, name="Other", report=with_shares(0.25, 0.5), baselines={"unused": BARE})
    tree = page_of(first, second)
    assert table_rows(tree)[:2] == [
        ["", "Bare", "Other", "features", "Bare: difference", "Other: difference"],
        ["Recall@1", "75.00", "25.00", "50.00", "+25.00 +25.00 to +25.00", "−25.00 −25.00 to −25.00"],
    ]
    helped, did_not = verdicts(tree)
    assert helped.startswith("Bare: trained embeddings retrieve")
    assert did_not.startswith("Other: training did not")


def test_a_baseline_on_other_classes_is_shown_without_intervals():
    tree = compared(with_shares(0.75, 0.5), features=replace(with_shares(0.5, 0.25), per_class=per_class(c=0.5)))
    assert table_rows(tree)[1] == ["Recall@1", "75.00", "50.00", "+25.00"]
    assert "different test classes" in verdicts(tree)[0]
    assert "95 % interval" not in text(tree.find(".//section"))


def test_an_incomplete_benchmark_is_named_beside_the_numbers():
    tree = compared(with_shares(0.75, 0.5, incomplete=True), features=with_shares(0.5, 0.25))
    assert "Incomplete benchmark" in text(tree.find(".//section"))
    assert "Incomplete" not in text(compared(with_shares(0.75, 0.5), features=with_shares(0.5, 0.25)))


def test_metrics_are_rows_with_one_column_per_method():
    tree = parse(render_page(PAGE))
    assert table_rows(tree) == [
        ["", "SoftTriple", "Softmax"],
        ["Recall@1", "50.00 40.00 to 60.00", "50.00 40.00 to 60.00"],
        ["Recall@8", "75.00", "75.00"],
        ["MAP@R", "12.50", "25.00"],
        ["R-precision", "25.00", "25.00"],
        ["NMI", "60.00 spread 1.00", "60.00 spread 1.00"],
        ["AMI", "40.00 spread 2.00", "40.00 spread 2.00"],
        ["Distinct centres per class", "1.7", "–"],
    ]
    assert "8 queries of 2 classes against 9 items." in text(tree)
    assert text(tree.find(".//dl")) == "dataletters time58 s"


def test_best_is_bold_ties_included():
    rows = parse(render_page(PAGE)).find(".//table").iter("tr")
    bold = {text(row[0]): [cell.find("strong") is not None for cell in row[1:]] for row in rows}
    assert bold["Recall@1"] == [True, True]
    assert bold["MAP@R"] == [False, True]
    assert bold["Distinct centres per class"] == [False, False]


def test_one_method_is_not_called_best():
    tree = page_of(SOFTTRIPLE)
    assert tree.find(".//strong") is None
    assert "bold" not in text(tree.find(".//main"))


def test_a_metric_of_no_report_has_no_row():
    tree = page_of(NOTHING)
    names = [row[0] for row in table_rows(tree)]
    assert names == ["", "Recall@1", "Recall@8", "MAP@R", "R-precision"]
    assert "Small print" not in text(tree)


def test_a_metric_that_one_report_lacks_is_a_dash():
    other = replace(NOTHING, report=replace(BARE, recall={1: 0.5, 2: 0.625}))
    rows = {name: cells for name, *cells in table_rows(page_of(SOFTTRIPLE, other))}
    assert rows["NMI"] == ["60.00 spread 1.00", "–"]
    assert (rows["Recall@2"], rows["Recall@8"]) == (["–", "62.50"], ["75.00", "–"])


def test_shorter_embeddings_have_a_table_of_their_own():
    shorter = replace(SOFTTRIPLE, prefixes={16: replace(REPORT, recall={1: 0.4}), 64: REPORT})
    tree = page_of(shorter)
    assert "Shorter embeddings" in headings(tree)
    assert table_rows(tree, 1) == [
        ["Dimensions", "R@1", "MAP@R"],
        ["16", "40.00 40.00 to 60.00", "12.50"],
        ["64", "50.00 40.00 to 60.00", "12.50"],
    ]
    both = page_of(shorter, SOFTMAX)
    assert table_rows(both, 1)[1][3:] == ["–", "–"]
    assert "Shorter embeddings" not in headings(page_of(SOFTTRIPLE))


def test_queries_left_out_are_named():
    report = replace(REPORT, num_without_positives=3, num_zero_vectors=2)
    shown = text(page_of(replace(SOFTTRIPLE, report=report)))
    assert "3 left out" in shown
    assert "2 zero vectors" in shown


def test_sections_without_content_are_left_out():
    assert headings(page_of(NOTHING)) == ["Retrieval and clustering"]
    assert headings(parse(render_page(PAGE))) == [
        "Retrieval and clustering",
        "Training",
        "Retrieved examples",
        "Centres of some classes",
        "Hardest classes",
    ]


def test_examples_are_grouped_by_the_reason_why_they_are_shown():
    shown = [
        replace(queries(True)[0], reason=reason) for reason in ("Most confident errors", "Most confident errors", "x")
    ]
    tree = page_of(replace(NOTHING, queries=tuple(shown)))
    lists = tree.findall(".//ol[@class='queries']")
    assert [len(one.findall("li")) for one in lists] == [2, 1]
    titles = [text(heading) for heading in tree.findall(".//section/h3")]
    assert titles == ["Most confident errors the nearest neighbour has another class and the highest similarity", "x"]


def test_wrong_neighbors_are_marked_in_words_too():
    tree = parse(render_page(PAGE))
    wrong = tree.findall(".//li[@class='wrong']")
    assert [text(item) for item in wrong] == ["0.88 ✗ b"] * 3
    assert [item.find("img").get("alt") for item in wrong] == ["Wrong class: b"] * 3
    alts = [image.get("alt") for image in tree.findall(".//ol[@class='items']/li/img")]
    assert sum(alt == "Same class: a" for alt in alts) == 3
    answers = [text(heading) for heading in tree.findall(".//div[@class='answers']//h3")]
    assert answers == ["SoftTriple 2 of 3 correct", "Softmax 1 of 3 correct"]


def test_centers_tell_how_many_items_they_hold():
    card = text(page_of(SOFTTRIPLE).find(".//article"))
    assert card == "a 2 of 3 distinct centres hold items Centre 1: 7 items Centre 2: 1 item a text"


def test_charts_only_for_what_there_is():
    charts = [chart.get("aria-label") for chart in parse(render_page(PAGE)).findall(".//svg[@role='img']")]
    assert charts == ["Training loss by epoch", "Distinct centres: 1 in 1 class, 2 in 2 classes"]
    assert page_of(replace(SOFTMAX, losses=())).find(".//svg") is None
    held_out = page_of(replace(NOTHING, held_out_recall=((1, 0.5), (2, 0.75)))).findall(".//svg[@role='img']")
    assert [chart.get("aria-label") for chart in held_out] == ["Recall@1 on held-out classes by epoch"]


def test_trials_are_drawn_with_what_was_chosen():
    gains = tuple(Gain(epoch, share, epoch * share / 100, 0.0) for epoch in (1, 2) for share in (0.5, 1.0))
    tried = replace(NOTHING, gains=(Gain(0, 0.0, 0.0, 0.0), *gains), chosen=gains[-1])
    (figure,) = page_of(tried).findall(".//figure")
    assert figure.find("svg").get("aria-label") == "Gain in Recall@1 on held-out classes by epoch"
    assert "Chosen: epoch 2, 100 % of the way (+2.0 points)." in text(figure)
    assert [text(entry) for entry in figure.findall(".//li")] == ["50 % of the way", "100 % of the way"]
    start = page_of(replace(tried, chosen=tried.gains[0]), NOTHING)
    assert "no training helped in every trial" in text(start.find(".//figure"))


def test_hardest_classes_come_first_and_end_at_ten():
    a = replace(NOTHING, report=replace(BARE, per_class=per_class(**{f"c{n:02}": n / 20 for n in range(20)})))
    b = replace(NOTHING, report=replace(BARE, per_class=per_class(**{"c00": 1.0, "only here": 0.0})))
    alone = table_rows(page_of(a), 1)
    assert [row[0] for row in alone] == ["Class"] + [f"c{n:02}" for n in range(10)]
    assert alone[2] == ["c01", "5.00"]
    together = table_rows(page_of(a, b), 1)
    assert together[1] == ["only here", "–", "0.00"]
    assert together[10] == ["c09", "45.00", "–"]
    assert len(together) == 11


@pytest.mark.parametrize(
    ("picture", "kind", "size"), [(GLYPH, "png", (24, 32)), (PHOTO, "jpeg", (64, 96)), (DRAWING, "png", (96, 96))]
)
def test_pictures_are_small_files_of_the_kind_that_suits_them(picture, kind, size):
    tree = page_of(replace(NOTHING, queries=queries(True, picture=picture)))
    head, data = tree.find(".//img").get("src").split(",")
    image = PillowImage.open(BytesIO(base64.b64decode(data)))
    assert head == f"data:image/{kind};base64"
    assert image.size == size


def test_pixels_of_a_small_picture_are_kept():
    tree = page_of(replace(NOTHING, queries=queries(True)))
    image = PillowImage.open(BytesIO(base64.b64decode(tree.find(".//img").get("src").split(",")[1])))
    assert np.array_equal(np.asarray(image), GLYPH)


def test_texts_stand_where_pictures_would():
    tree = page_of(replace(NOTHING, queries=queries(True, False, picture="where is my card?")))
    assert tree.find(".//img") is None
    assert [text(item) for item in tree.findall(".//p[@class='text']")] == ["where is my card?"] * 3


def page_saying(words):
    """A page with ``words`` wherever a page takes text, and no charts."""
    neighbors = (Neighbor(words, words, 0.5, False), Neighbor(GLYPH, words, 0.5, True))
    method = Method(
        words,
        replace(REPORT, per_class=per_class(**{words: 0.5})),
        (),
        (),
        (Query(words, words, neighbors), Query(GLYPH, words, neighbors)),
        (ClassCenters(words, 1, (CenterGroup(1, (words, GLYPH)),)),),
        {words: replace(REPORT, per_class=per_class(**{words: 0.25}))},
    )
    return Page(words, ((words, words),), (method, method))


def structure(html):
    return [(element.tag, sorted(element.keys())) for element in parse(html).iter() if element.tag != "wbr"]


@settings(max_examples=25, deadline=None)
@given(st.text())
@example("</title></style><script>alert(1)</script>")
@example("\"' onerror='alert(1)' x=\"&lt;")
@example("<!-- ]]> &#60;script>")
@example("\udcff is no UTF-8")
def test_no_text_becomes_markup(words):
    html = render_page(page_saying(words))
    html.encode("utf-8")
    assert structure(html) == structure(render_page(page_saying("plain")))


def test_text_is_shown_as_it_was():
    words = """<b>"R&amp;D" 'x'</b>"""
    tree = parse(render_page(page_saying(words)))
    assert text(tree.find(".//h1")) == words
    assert text(tree.find(".//dd")) == words
    assert text(tree.find(".//article/h4")) == f"{words} 1 distinct centre"
    assert tree.find(".//img").get("alt") == f"Same class: {words}"


def test_names_of_methods_are_neither_markup_nor_mathematics_beside_charts():
    tree = page_of(replace(SOFTTRIPLE, name=r"<i>$\frac{"), SOFTMAX, NOTHING)
    assert [text(entry) for entry in tree.findall(".//ul[@class='legend']/li")] == [r"<i>$\frac{", "Softmax"]
    assert text(tree.findall(".//div[@class='charts']//figcaption")[1]).startswith(r"<i>$\frac{: number of classes")


def test_page_needs_a_method():
    with pytest.raises(ValueError, match="methods: a page shows at least one"):
        Page("", (), ())


@pytest.mark.parametrize(
    "others", [queries(True) * 2, queries(True, picture="a text"), (replace(queries(True)[0], class_name="b"),)]
)
def test_methods_must_answer_the_same_queries(others):
    with pytest.raises(ValueError, match="'Softmax' must show the queries of 'SoftTriple'"):
        Page("", (), (SOFTTRIPLE, replace(SOFTMAX, queries=others)))


def test_a_method_may_show_no_queries():
    tree = page_of(replace(SOFTTRIPLE, queries=()), SOFTMAX)
    assert [text(heading) for heading in tree.findall(".//div[@class='answers']//h3")] == ["Softmax 1 of 3 correct"]


def test_write_page_of_a_run_counts_centers_as_the_verb_does(tmp_path: Path) -> None:
    run = train("digits", out=tmp_path / "run", epochs=1, centers_per_class=10, reporter=Reporter(quiet=True))
    path = write_page(run, command="a test")
    assert path == tmp_path / "run" / "report.html"
    distinct = count_centers(run).distinct
    cards = parse(path.read_text(encoding="utf-8")).findall(".//article")
    assert len(cards) == 6
    for card in cards:
        holding = len(card.findall(".//ol/li"))
        name, _, words = text(card.find("h4")).partition(" ")
        assert words == f"{holding} of {distinct[name]} distinct centres hold items"
    first, *others = run.baselines
    assert table_rows(parse(path.read_text(encoding="utf-8")))[0] == ["", "trained", first, "difference", *others]
    write_page(Run.load(tmp_path / "run"), command="a test", path=tmp_path / "loaded.html")
    assert (tmp_path / "loaded.html").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_write_page_of_runs_in_memory_needs_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"$\\frac{{ <{label}> \udcff" for label in range(10)]
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 6)
    vectors = random.standard_normal((60, 4)).astype(np.float32) + np.eye(10, 4)[labels]
    benchmark = make_benchmark(vectors.astype(np.float32), [names[label] for label in labels])
    benchmark = replace(benchmark, incomplete=True)
    embedded = []
    original = run_module.embed_split
    monkeypatch.setattr(run_module, "embed_split", lambda *args: (embedded.append(args[2]), original(*args))[1])
    runs = {loss: train(benchmark, loss=loss, epochs=1, dim=4, reporter=Reporter(quiet=True)) for loss in LOSSES}
    with pytest.raises(UserError, match="path"):
        write_page(runs["softtriple"], command="a test")
    page = write_page(runs, command="a test", path=tmp_path / "page.html").read_text(encoding="utf-8")
    tree = parse(page)
    assert table_rows(tree)[0][:3] == ["", *LOSSES]
    assert [name for name in table_rows(tree)[0] if name in runs["softtriple"].baselines] == [
        *runs["softtriple"].baselines
    ]
    assert "Incomplete benchmark" in text(tree)
    assert embedded  # the training items near the centres
    assert not any(split is benchmark.test for split in embedded)  # training has embedded them for its report
    assert "$\\frac{ &lt;" in page
