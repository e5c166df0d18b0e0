import re

import pytest
from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.errors import UserError


def test_other_columns_can_be_named(tmp_path):
    table = miniatures.csv_table(tmp_path, header=("photo", "species"))
    benchmark = load_benchmark(str(table), path="photo", label="species")
    assert len(benchmark.train) == 6
    with pytest.raises(
        UserError, match=r"no column path, .* has 'photo', 'species'.*data\.path=COLUMN or .*data\.text"
    ):
        load_benchmark(str(table))
    with pytest.raises(UserError, match=r"no column label, .* has 'photo', 'species'.*data\.label=COLUMN"):
        load_benchmark(str(table), path="photo")
    with pytest.raises(UserError, match=r"no column 'specis'.*did you mean 'species'"):
        load_benchmark(str(table), path="photo", label="specis")


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("utterance,intent", "text"),
        ("Question,Category", "text"),
        ("TEXT,LABEL", "text"),
        ("sentence,kind", "text"),
        ("filename,class", "image"),
        ("Image,label", "image"),
        ("text,label,question,category", "text"),  # text and label are preferred
    ],
)
def test_columns_are_recognised_by_their_names(tmp_path, header, kind):
    for name in "abcd":
        miniatures.write_image(tmp_path / f"{name}.png")
    more = ",?,?" * (header.count(",") > 1)
    (tmp_path / "t.csv").write_text(header + "\n" + "".join(f"{c}.png,{i % 2}{more}\n" for i, c in enumerate("abcd")))
    benchmark = load_benchmark(str(tmp_path / "t.csv"))
    assert benchmark.kind == kind
    assert benchmark.class_names == ("0", "1")
    item, label, *_ = header.split(",")
    assert f"columns: {item!r} ({kind}) and {label!r} (label)" in benchmark.notes


@pytest.mark.parametrize(
    ("header", "candidates"),
    [
        ("query,question,label", "query, question"),
        ("file,question,label", "file, question"),
        ("text,kind,class", "kind, class"),
    ],
)
def test_ambiguous_columns_are_named(tmp_path, header, candidates):
    (tmp_path / "t.csv").write_text(f"{header}\na,b,c\nd,e,f\n")
    with pytest.raises(UserError, match=f"columns {candidates} could be meant"):
        load_benchmark(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "text\tlabel\na, b\tx\nc; d\ty\n"),
        ("t.csv", "text;label\na, b;x\nc, d, e;y\n"),
        ("t.csv", "text\tlabel\na, b\tx\nc, d\ty\n"),
        ("t.csv", 'text,label\r\n"a, b",x\r\nc; d; e,y\r\n'),
        ("t.jsonl", '{"text": "a, b", "label": "x"}\n\n{"label": "y", "text": "c\\nd", "other": [1]}\n'),
        ("T.JSONL", '{"text": "a, b\u2028", "label": "x"}\n{"label": "y", "text": "c"}\n'),
    ],
)
def test_separators_and_json_lines(tmp_path, name, content):
    (tmp_path / name).write_bytes(content.encode())
    benchmark = load_benchmark(str(tmp_path / name))
    assert benchmark.train.items.values[0].strip() == "a, b"
    assert benchmark.class_names == ("x", "y")


def test_numbers_in_json_lines_are_labels(tmp_path):
    (tmp_path / "t.jsonl").write_text("".join(f'{{"text": "t", "label": {i}}}\n' for i in (10, 9)))
    assert load_benchmark(str(tmp_path / "t.jsonl")).class_names == ("9", "10")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"', "line 1 is not JSON"),
        ('{"a": 1}\n["text"]', "line 2 is not an object"),
        ("", "the file is empty"),
    ],
)
def test_json_lines_with_a_fault(tmp_path, content, message):
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(UserError, match=rf"t\.jsonl: {message}"):
        load_benchmark(str(tmp_path / "t.jsonl"))


def test_a_table_without_a_header_line_is_explained(tmp_path):
    (tmp_path / "t.csv").write_text("how are you,greeting\nbye now,farewell\n")
    with pytest.raises(UserError, match=r"'how are you', 'greeting'.*no header line, add one such as text,label"):
        load_benchmark(str(tmp_path / "t.csv"))


def test_rows_without_a_label_stop_or_are_skipped(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,x\nb,\nc,y\nd, \n")
    with pytest.raises(UserError, match=r"2 of 4 rows .*row 2: column 'label' is empty.*--on-error skip"):
        load_benchmark(str(tmp_path / "t.csv"))
    benchmark = load_benchmark(str(tmp_path / "t.csv"), on_error="skip")
    assert benchmark.class_names == ("x", "y")
    assert any("left out 2 of 4 rows" in note for note in benchmark.notes)
    assert [line.partition(": ")[2] for line in benchmark.skipped] == [
        "row 2: column 'label' is empty",
        "row 4: column 'label' is empty",
    ]


def test_a_table_without_a_split_may_have_one_class(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,x\nb,x\n")
    assert len(load_benchmark(str(tmp_path / "t.csv"), split="none").test) == 2


def test_a_column_called_split_is_used(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,split\na,x,train\nb,y,test\nc,x,test\n")
    benchmark = load_benchmark(str(tmp_path / "t.csv"))
    assert benchmark.train.items.values == ("a",)
    assert benchmark.test.items.values == ("b", "c")
    assert "split by column 'split'" in benchmark.notes


def test_a_named_column_splits(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,fold\na,x,train\nb,y,test\n")
    assert len(load_benchmark(str(tmp_path / "t.csv"), split="fold").test) == 1
    with pytest.raises(ValueError, match="column 'fold', already defines the split; remove seed"):
        load_benchmark(str(tmp_path / "t.csv"), split="fold", seed=1)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("text,label\na,x\nb\n", {}, "row 2 has 1 fields, the header 2"),
        ("text,label\na,x\nb,\n", {}, "1 of 2 rows .*row 2: column 'label' is empty"),
        ("text,label\n", {}, "the table has no rows"),
        ("", {}, "the file is empty"),
        ("text,text,label\na,b,x\n", {}, "a column name is repeated"),
        ("text,path,label\na,b,x\n", {}, "columns text, path could be meant"),
        ("text,label,fold\na,x,test\nb,y,test\n", {"split": "fold"}, "no row has 'train'"),
        ("text,label,fold\na,x,train\nb,y,val\nc,y,test\n", {"split": "fold"}, "column 'fold' contains 'val'"),
        ("text,label,fold\na,x,train\nb,y,train\n", {"split": "fold"}, "no row has 'test' in column 'fold'"),
        ("text,label\na,x\nb,y\n", {"split": "fold"}, "split = 'fold' is not a column or a way to split"),
        ("text,label\na,x\nb,y\n", {"text": "text", "path": "path"}, "cannot both be used"),
        ("text,label\na,x\n ,y\n", {}, "1 of 2 rows .*row 2: column 'text' is blank"),
    ],
)
def test_a_table_with_a_fault(tmp_path, content, options, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_benchmark(str(tmp_path / "t.csv"), **options)
    assert re.match(".*t.csv", str(caught.value))


def test_a_table_that_is_not_utf8(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"text,label\n\xff\xfe,x\n")
    with pytest.raises(ValueError, match=r"t\.csv: not UTF-8 text"):
        load_benchmark(str(tmp_path / "t.csv"))


def test_missing_images_stop_or_are_skipped(tmp_path):
    table = miniatures.csv_table(tmp_path)
    (tmp_path / "class1" / "2.png").unlink()
    with pytest.raises(ValueError, match=r"1 of 12 rows .*class1/2\.png: no such file"):
        load_benchmark(str(table))
    benchmark = load_benchmark(str(table), on_error="skip")
    assert len(benchmark.train) == 5
    assert f"left out: {tmp_path / 'class1' / '2.png'}: no such file" in benchmark.notes
    assert any("left out 1 of 12 rows" in note for note in benchmark.notes)


def test_blank_texts_can_be_skipped(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,x\n ,x\nb,y\n")
    benchmark = load_benchmark(str(tmp_path / "t.csv"), on_error="skip")
    assert benchmark.train.items.values + benchmark.test.items.values == ("a", "b")
    assert benchmark.skipped == (f"{tmp_path / 't.csv'}: row 2: column 'text' is blank",)


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"t\.parquet: not a readable parquet file"):
        load_benchmark(str(tmp_path / "t.parquet"))


def test_path_and_text_exclude_each_other(tmp_path):
    (tmp_path / "t.csv").write_text("text,path,label\na,b,x\n")
    with pytest.raises(UserError, match="path = 'path' and text = 'text' cannot both be used"):
        load_benchmark(str(tmp_path / "t.csv"), path="path", text="text")


def test_a_column_may_say_val(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,split\na,x,train\nb,y,val\n")
    assert load_benchmark(str(tmp_path / "t.csv")).test.items.values == ("b",)
