import pytest
from tests.data import miniatures

from softtriple.data import absolute_spec, load_benchmark
from softtriple.errors import UserError


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("birds:/nowhere", "unknown benchmark 'birds'.*cars196, cub.*sop"),
        ("cub:", "cub:: not downloaded yet.*softtriple download cub`.*cub:PATH"),
        ("cub", "cub: not downloaded yet.*softtriple download cub`.*cub:PATH"),
        ("omniglot-alphabets", "softtriple download omniglot`.*omniglot-alphabets:PATH"),
        ("cubs:/nowhere", "unknown benchmark 'cubs' in 'cubs:/nowhere'; did you mean 'cub'"),
        ("nowhere", "nowhere: no such file or folder; choose from .*cub:PATH.*, digits, glyphs"),
        ("glyhps", "glyhps: no such file or folder; did you mean 'glyphs'"),
        ("cub:/nowhere", "/nowhere/classes.txt: no such file"),
        ("cars196:/nowhere", "/nowhere: no such folder; expected cars_annos.mat"),
        ("omniglot:/nowhere", "neither images_background.zip nor images_background/"),
    ],
)
def test_a_wrong_spec_says_what_would_be_right(spec, message):
    with pytest.raises(UserError, match=message):
        load_benchmark(spec)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(
        ValueError,
        match=r"data\.json: cannot read \.json; expected a folder or \.csv, \.tsv, \.jsonl, \.parquet, \.npz",
    ):
        load_benchmark(str(tmp_path / "data.json"))


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="digits has no option 'split'; it has no options"):
        load_benchmark("digits", split="instances")


def test_an_option_of_another_source_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no option 'label'; choose from split, test_share, seed, on_error"):
        load_benchmark(str(miniatures.class_folders(tmp_path)), label="kind")
    with pytest.raises(ValueError, match="has no option 'test_shar'; did you mean 'test_share'"):
        load_benchmark(str(tmp_path), test_shar=0.1)


def test_none_counts_as_not_given():
    assert load_benchmark("digits", split=None, seed=None).name == "digits"


def test_on_error_is_one_of_two_words(tmp_path):
    with pytest.raises(ValueError, match="on_error = 'ignore'; expected 'stop' or 'skip'"):
        load_benchmark(str(miniatures.class_folders(tmp_path)), on_error="ignore")


@pytest.mark.parametrize(
    "make",
    [
        miniatures.class_folders,
        miniatures.train_test_folders,
        miniatures.csv_table,
        miniatures.cub,
        miniatures.cars_mat,
        miniatures.cars_folders,
        miniatures.sop,
        miniatures.inshop,
    ],
)
def test_relative_sources_give_absolute_paths(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = make(tmp_path / "data").relative_to(tmp_path)
    scheme = make.__name__.partition("_")[0].replace("cars", "cars196")
    spec = f"{scheme}:{made}" if scheme in ("cub", "cars196", "sop", "inshop") else str(made)
    options = {"on_error": "skip"} if ":" in spec else {}
    for split in load_benchmark(spec, **options).splits.values():
        assert len(split)
        assert all(path.startswith(str(tmp_path / "data")) for path in split.items.paths)


def test_a_source_with_its_own_split_keeps_it_when_none_is_asked_for(tmp_path):
    benchmark = load_benchmark(f"cub:{miniatures.cub(tmp_path)}", split="none", on_error="skip")
    assert (len(benchmark.train), len(benchmark.test)) == (6, 6)


def test_suffixes_are_compared_without_case(tmp_path):
    table = miniatures.text_table(tmp_path)
    table.rename(tmp_path / "T.PARQUET")
    assert load_benchmark(str(tmp_path / "T.PARQUET")).kind == "text"


def test_a_downloaded_benchmark_needs_no_path(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_DATA", str(tmp_path))
    assert absolute_spec("cub") == "cub"
    folder = miniatures.cub(tmp_path / "CUB_200_2011")
    assert len(load_benchmark("cub", on_error="skip").train) == 6
    assert absolute_spec("cub") == f"cub:{folder}"


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_DATA", str(tmp_path / "data"))
    miniatures.cub(tmp_path / "data" / "CUB_200_2011")
    miniatures.class_folders(tmp_path / "cub", classes=2)
    monkeypatch.chdir(tmp_path)
    assert load_benchmark("cub").class_names == ("class0", "class1")
    assert absolute_spec("cub") == str(tmp_path / "cub")
