"""``HuggingFaceIterDataset``: the library's examples, resumed exactly after any operation of
the library, and shared by workers.
"""

import json
import os
import random

import pytest
from programs import output
from refusing import assert_raises

os.environ["HF_HUB_OFFLINE"] = "1"
datasets = pytest.importorskip("datasets")

from datasets.distributed import split_dataset_by_node  # noqa: E402

from gristmill import MultiprocessingOptions  # noqa: E402
from gristmill.core.errors import StateKeyError, StateMismatchError  # noqa: E402
from gristmill.dataset.slicing import slice_pipeline  # noqa: E402
from gristmill.diagnostics.provenance import explain  # noqa: E402
from gristmill.experimental import HuggingFaceIterDataset  # noqa: E402

# seconds for which the library waits after interleaved Parquet files
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0


@pytest.fixture(scope="module", autouse=True)
def without_progress_bars():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 7, 1, 13 rows with numbers, in two formats."""
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("streams")
    first = 0
    for file, size in enumerate((7, 1, 13)):
        rows = [{"x": x} for x in range(first, first + size)]
        (folder / f"{file}.jsonl").write_text("".join([json.dumps(row) + "\n" for row in rows]))
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(rows), folder / f"{file}.parquet", row_group_size=4
        )
        first += size
    return folder


def generated(shards):
    for shard in shards:
        yield from [{"x": 10 * shard + i} for i in range(5)]


def source(kind, folder):
    if kind == "generator":
        return datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": [1, 2, 3]})
    if kind == "memory":
        return datasets.Dataset.from_dict({"x": list(range(17))}).to_iterable_dataset(num_shards=4)
    return datasets.load_dataset(
        kind, data_files=f"{folder}/*.{SUFFIXES[kind]}", split="train", streaming=True
    )


SUFFIXES = {"json": "jsonl", "parquet": "parquet"}
KINDS = ("generator", "memory", "json", "parquet")


def with_y(row):
    return {"y": row["x"] + 1}


def with_number(row, number):
    return {"number": number}


def of_batch(rows):
    return {"x": rows["x"], "size": [len(rows["x"])] * len(rows["x"])}


def doubled(rows):
    return {"x": [x for x in rows["x"] for _ in range(2)]}


def doubled_table(table):
    import pyarrow

    return pyarrow.concat_tables([table, table])


async def with_z(row):
    return {"z": row["x"]}


def has_no_three(row):
    return row["x"] % 3 != 0


def have_no_three(rows):
    return [x % 3 != 0 for x in rows["x"]]


STEPS = {
    "map": lambda ds, rng: ds.map(with_y),
    "with_indices": lambda ds, rng: ds.map(with_number, with_indices=True),
    "map_batches": lambda ds, rng: ds.map(
        of_batch, batched=True, batch_size=rng.choice([2, 3, 1000])
    ),
    "double": lambda ds, rng: ds.map(
        doubled, batched=True, batch_size=rng.choice([2, 3]), remove_columns=ds.column_names
    ),
    "filter": lambda ds, rng: ds.filter(has_no_three),
    "filter_batches": lambda ds, rng: ds.filter(have_no_three, batched=True, batch_size=4),
    "batch": lambda ds, rng: ds.batch(rng.choice([2, 3])),
    "skip": lambda ds, rng: ds.skip(3),
    "take": lambda ds, rng: ds.take(11),
    "repeat": lambda ds, rng: ds.repeat(2),
    "shard": lambda ds, rng: ds.shard(2, 0) if ds.num_shards > 1 else ds,
    "select_columns": lambda ds, rng: ds.select_columns(["x"]),
    "numpy": lambda ds, rng: ds.with_format("numpy"),
    "shuffle_files": lambda ds, rng: ds.shuffle(seed=3, buffer_size=1),
    "node": lambda ds, rng: split_dataset_by_node(ds, rank=1, world_size=2),
    "epoch": lambda ds, rng: in_epoch(ds, 2),
}
STRATEGIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
JOINS = {
    "interleave": lambda a, b, rng: datasets.interleave_datasets(
        [a, b], stopping_strategy=rng.choice(STRATEGIES)
    ),
    "mix": lambda a, b, rng: datasets.interleave_datasets(
        [a, b], [0.3, 0.7], 5, stopping_strategy=rng.choice(STRATEGIES)
    ),
    "concatenate": lambda a, b, rng: datasets.concatenate_datasets([a, b]),
}


def in_epoch(ds, epoch):
    ds.set_epoch(epoch)
    return ds


def random_stream(seed, folder):
    """A stream of some stages, and their names; ``None`` if the library does not have it."""
    rng = random.Random(seed)
    names = [rng.choice(KINDS)]
    ds = source(names[0], folder)
    try:
        for _ in range(rng.randint(0, 4)):
            if rng.random() < 0.2:
                names += [join := rng.choice(sorted(JOINS)), other := rng.choice(KINDS)]
                ds = JOINS[join](ds, source(other, folder), rng)
            else:
                names.append(step := rng.choice(sorted(STEPS)))
                ds = STEPS[step](ds, rng)
        next(iter(HuggingFaceIterDataset(ds)), None)
    except (TypeError, ValueError, KeyError):  # columns that are lists now, or missing
        return None, names
    return ds, names


def plain(row):
    return {
        name: getattr(value, "tolist", lambda value=value: value)() for name, value in row.items()
    }


def check_resumes_exactly(ds, names, positions):
    """From states at ``positions``, in new, used and exhausted iterators; again from states of
    these; and back from the end.
    """
    it = iter(ds)
    states, expected = [it.get_state()], []
    for row in it:
        expected.append(plain(row))
        states.append(it.get_state())
        if len(expected) == 60:
            break
    states = json.loads(json.dumps(states))
    used = iter(ds)
    for position in positions(len(states)):
        for other in (iter(ds), used):
            other.set_state(states[position])
            assert other.get_state() == states[position], names
            rest = [plain(row) for _, row in zip(range(2), other, strict=False)]
            again = iter(ds)
            again.set_state(json.loads(json.dumps(other.get_state())))
            rest += [plain(row) for _, row in zip(range(60 - position), again, strict=False)]
            assert rest[: len(expected) - position] == expected[position:], (names, position)
            assert len(expected) == 60 or len(rest) == len(expected) - position
    return len(expected)


def some(num):
    return sorted({0, 1, num // 3, num // 2, num - 2, num - 1} & set(range(num)))


def test_the_elements_are_the_librarys(folder):
    for kind in KINDS:
        for step in STEPS.values():
            ds = step(source(kind, folder), random.Random(1))
            assert [plain(row) for row in HuggingFaceIterDataset(ds)] == [plain(row) for row in ds]


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_resumed_exactly(step, folder):
    for kind in ("generator", "parquet"):
        ds = HuggingFaceIterDataset(STEPS[step](source(kind, folder), random.Random(1)))
        check_resumes_exactly(ds, (kind, step), range if kind == "generator" else some)


@pytest.mark.parametrize("join", JOINS)
def test_every_join_is_resumed_exactly(join, folder):
    for epoch in range(2):  # in later epochs the library takes joined streams apart
        ds = in_epoch(
            JOINS[join](source("json", folder), source("generator", folder), random.Random(epoch)),
            epoch,
        )
        check_resumes_exactly(HuggingFaceIterDataset(ds), join, some)
    # Shards of what gives tables in part may give nothing else, which the library does not expect
    # downstream of a stage.
    ds = STEPS["shuffle_files"](ds.map(with_y), None)
    check_resumes_exactly(HuggingFaceIterDataset(ds), join, some)


def check_random_streams(seeds, folder):
    num = 0
    for seed in seeds:
        ds, names = random_stream(seed, folder)
        num += ds is not None and check_resumes_exactly(HuggingFaceIterDataset(ds), names, some) > 0
    return num


def test_random_streams_are_resumed_exactly(folder):
    assert check_random_streams(range(8), folder) > 3


@pytest.mark.slow
def test_many_random_streams_are_resumed_exactly(folder):
    first = int(os.environ.get("GRISTMILL_TEST_SEED", "1")) * 1000
    assert check_random_streams(range(first, first + 40), folder) > 15


COUNTED = {
    "batches of tables": lambda ds: (
        ds.with_format("arrow").map(doubled_table, batched=True, batch_size=3).with_format(None)
    ),
    "by column": lambda ds: ds.map(lambda row: {"third": row["x"] // 3}).batch(by_column="third"),
    "async": lambda ds: ds.map(with_z),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_the_library_may_lose_is_counted(name, folder):
    for kind in ("generator", "json"):
        ds = HuggingFaceIterDataset(COUNTED[name](source(kind, folder)))
        it = iter(ds)
        next(it)
        assert it.get_state() == {
            "num_delivered": 1,
            "num_since_library_state": 1,
            "library_state": "",
            "is_at_end": False,
        }
        check_resumes_exactly(ds, (kind, name), some)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda ds: ds.shuffle(seed=1),
            ValueError,
            r"shuffle\(buffer_size=1000\).*window_shuffle\(1000, seed=\.\.\.\)",
        ),
        (
            lambda ds: ds.shuffle(seed=1, buffer_size=7).map(with_y),
            ValueError,
            r"buffer_size=7.*window_shuffle\(7",
        ),
        (lambda ds: ds.shuffle(buffer_size=1), ValueError, r"without a seed"),
        (
            lambda ds: datasets.interleave_datasets([ds, ds], [0.5, 0.5]),
            ValueError,
            "without a seed",
        ),
        (
            lambda ds: datasets.IterableDatasetDict(a=ds),
            TypeError,
            r"got IterableDatasetDict: choose .* dataset\['a'\]",
        ),
        (
            lambda ds: datasets.Dataset.from_dict({"x": [1]}),
            TypeError,
            "got Dataset: it has random access: use .*HuggingFaceSource",
        ),
        (lambda ds: "imdb", TypeError, "got str: load it: .*streaming=True"),
        (lambda ds: [1], TypeError, "got list: load_dataset"),
    ],
)
def test_what_cannot_be_resumed_is_refused_with_a_remedy(make, error, message, folder):
    with pytest.raises(error, match=f"dataset must (not )?be .*{message}"):
        HuggingFaceIterDataset(make(source("generator", folder)))


def test_iterators_do_not_disturb_each_other(folder):
    stream = source("parquet", folder).shuffle(seed=1, buffer_size=1)
    ds, expected = HuggingFaceIterDataset(stream), [row["x"] for row in stream]
    first, second = iter(ds), iter(ds)
    taken = [next(first)["x"], next(first)["x"], next(second)["x"]]
    stream.set_epoch(3)
    assert [row["x"] for row in stream] != expected
    taken += [row["x"] for row in first]
    assert taken == [*expected[:2], expected[0], *expected[2:]]
    assert [row["x"] for row in second] == expected[1:]
    later = HuggingFaceIterDataset(stream)
    assert [row["x"] for row in later] == [row["x"] for row in stream]
    with pytest.raises(StateMismatchError, match="of an equal data set in the same epoch"):
        iter(later).set_state(first_state(ds))


def first_state(ds):
    it = iter(ds)
    next(it)
    return it.get_state()


def test_states_of_other_streams_are_refused_and_change_nothing(folder):
    ds = HuggingFaceIterDataset(source("json", folder).map(with_y).batch(2))
    other = first_state(HuggingFaceIterDataset(source("json", folder).filter(has_no_three)))
    good = first_state(ds)
    library_state = json.loads(good["library_state"])
    library_state["examples_iterable"]["examples_iterable"]["type"] = "Other"
    it = iter(ds)
    next(it), next(it)
    before = it.get_state()
    for wrong in (
        other,
        {**good, "library_state": ""},
        {**good, "library_state": "{"},
        {**good, "library_state": json.dumps(library_state)},
        {**good, "num_since_library_state": 2},
        {**good, "is_at_end": True},
    ):
        assert_raises(
            StateMismatchError, "in the state of HuggingFaceDatasetIterator", it.set_state, wrong
        )
        assert it.get_state() == before
    with pytest.raises(StateKeyError, match="is_at_end"):
        it.set_state({name: good[name] for name in good if name != "is_at_end"})
    assert [row["x"] for row in it] == [row["x"] for row in ds][2:]


def test_a_state_of_a_longer_stream_that_is_counted_is_an_error(folder):
    def stream(shards):
        return HuggingFaceIterDataset(
            datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": shards}).map(
                with_z
            )
        )

    it = iter(stream([1, 2]))
    state = [it.get_state() for _ in it][7]
    it = iter(stream([1]))
    it.set_state(state)
    for _ in range(2):
        with pytest.raises(
            StateMismatchError,
            match="about a longer stream: 3 of the examples that it has delivered are not there",
        ):
            next(it)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 5])
def test_workers_have_all_elements_together_and_none_twice(num_workers, folder):
    rng = random.Random(num_workers)
    for seed in range(5, 5 + 4):
        ds, names = random_stream(seed, folder)
        if ds is None or "repeat" in names:
            continue
        whole = HuggingFaceIterDataset(ds)
        shares = [slice_pipeline(whole, worker, num_workers) for worker in range(num_workers)]
        found = [json.dumps(plain(row)) for share in shares for row in share]
        assert sorted(found) == sorted([json.dumps(plain(row)) for row in whole]), names
        check_resumes_exactly(rng.choice(shares), names, some)


def test_shards_are_shared_where_examples_are_independent(folder):
    def parts(ds, num_workers):
        whole = HuggingFaceIterDataset(ds)
        return [
            [row["x"] for row in slice_pipeline(whole, worker, num_workers)]
            for worker in range(num_workers)
        ]

    ds = source("generator", folder)
    assert parts(ds.filter(has_no_three), 2) == [[10, 11, 13, 14, 31, 32, 34], [20, 22, 23]]
    # more workers than shards: every fourth example
    assert parts(ds.filter(has_no_three), 4)[1] == [11, 22, 34]
    assert parts(ds.take(4), 2) == [[10, 12], [11, 13]]  # shards would not have the first four
    assert parts(ds.map(with_number, with_indices=True), 2)[1] == [11, 13, 20, 22, 24, 31, 33]


def test_workers_do_not_list_files_again(folder, tmp_path):
    for file in folder.glob("*.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stream = datasets.load_dataset(
        "json", data_files=f"{tmp_path}/*.jsonl", split="train", streaming=True
    )
    ds = HuggingFaceIterDataset(stream).map(lambda row: row["x"])
    (tmp_path / "9.jsonl").write_text('{"x": -1}\n')
    it = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    taken = [next(it) for _ in range(5)]
    state = json.loads(json.dumps(it.get_state()))
    taken += list(it)
    assert sorted(taken) == [*range(21)]
    again = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    again.set_state(state)
    assert list(again) == taken[5:]


def fail_at_twelve(row):
    if row["x"] == 12:
        raise ValueError("twelve is bad")
    return row


def test_failures_of_the_library_cannot_be_skipped(folder):
    ds = HuggingFaceIterDataset(source("generator", folder).map(fail_at_twelve)).map(
        lambda row: row["x"]
    )
    it = iter(ds)
    assert [next(it), next(it)] == [10, 11]
    before = it.get_state()
    for _ in range(3):
        assert_raises(ValueError, "twelve is bad", next, it)
    with pytest.raises(NotImplementedError, match=r"cannot move past .*such as \.map\(\.\.\.\)"):
        it.skip_failed()
    it.set_state(before)
    assert_raises(ValueError, "twelve is bad", next, it)
    behind = iter(
        HuggingFaceIterDataset(source("generator", folder))
        .map(fail_at_twelve)
        .map(lambda row: row["x"])
    )
    assert [next(behind), next(behind)] == [10, 11]
    assert_raises(ValueError, "twelve is bad", next, behind)
    behind.skip_failed()
    assert next(behind) == 13
    tolerant = (
        HuggingFaceIterDataset(source("generator", folder))
        .map(fail_at_twelve)
        .tolerate(ValueError, max_rate=None)
    )
    assert len(list(tolerant)) == 14


def test_an_error_names_a_missing_or_damaged_file(folder, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"x": 1}\n{"x": \n')
    stream = datasets.load_dataset(
        "json", data_files=f"{tmp_path}/bad.jsonl", split="train", streaming=True
    )
    assert_raises(Exception, "bad.jsonl|JSON|column", list, HuggingFaceIterDataset(stream))
    (tmp_path / "bad.jsonl").unlink()
    assert_raises(FileNotFoundError, "bad.jsonl", list, HuggingFaceIterDataset(stream))


def test_outputs_are_explained_by_their_place_in_the_stream(folder):
    ds = (
        HuggingFaceIterDataset(source("json", folder))
        .map(lambda row: row["x"])
        .filter(lambda x: x % 2)
        .batch(3)
    )
    it = iter(ds)
    next(it), next(it)
    assert [record.record_key for record in explain(it).records] == [7, 9, 11]
    assert (
        "HuggingFaceIterDataset(columns=['x'], format=None, num_shards=3"
        in explain(it).records[0].source
    )
    share = iter(slice_pipeline(ds, 1, 4))
    next(share)
    assert [record.record_key for record in explain(share).records] == [1, 5, 9]


def test_a_program_ends_silently_with_open_iterators(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    program = """
        import datasets
        from gristmill.experimental import HuggingFaceIterDataset
        async def with_z(row):
            return {"z": row["x"]}
        ds = datasets.Dataset.from_dict({"x": [1, 1, 2, 3]}).to_iterable_dataset()
        its = [iter(HuggingFaceIterDataset(x)) for x in (ds.map(with_z), ds.batch(by_column="x"))]
        print(*[next(it)["x"] for it in its])
    """
    assert output(tmp_path, program) == ["1 [1, 1]"]


def test_epochs_repeat_the_order_and_what_is_behind_shuffles(folder):
    ds = HuggingFaceIterDataset(source("json", folder)).map(lambda row: row["x"])
    assert list(ds.repeat(2)) == [*range(21)] * 2
    shuffled = list(ds.window_shuffle(8, seed=1).repeat(2))
    assert sorted(shuffled[:21]) == [*range(21)] == sorted(shuffled[21:])
