import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import assert_raises
from token_files import (
    megatron_samples,
    megatron_tables,
    save_tables,
    write_llm_c,
    write_megatron,
    write_npy,
    write_raw,
)

import gristmill as grain
from gristmill.core.errors import KeyRangeError
from gristmill.sources import ChangedFileError, DamagedFileError, TokenSource
from gristmill.sources.tokens import megatron_index
from gristmill.testing import assert_source_conforms

FORKED = Path(__file__).with_name("forked_tokens.py")

LENGTHS = [5 * i % 11 for i in range(20)]  # two are 0
TOKENS = np.arange(sum(LENGTHS), dtype=np.uint16)
DOCUMENTS = np.split(TOKENS, np.cumsum(LENGTHS)[:-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    write_megatron(folder / "all", DOCUMENTS)
    write_megatron(folder / "first", DOCUMENTS[:7])
    write_megatron(folder / "second", DOCUMENTS[7:])
    write_megatron(folder / "wide", DOCUMENTS, "int32")
    write_megatron(folder / "split", DOCUMENTS, document_ends=[2, 2, 9, 20])
    write_raw(folder / "raw.bin", TOKENS)
    write_raw(folder / "olmo.npy", TOKENS[:50])
    write_npy(folder / "numpy.npy", TOKENS[50:])
    tables, _ = megatron_tables(LENGTHS, range(20), 8, seed=3, num_samples=30)
    save_tables(folder / "cache-GPTDataset-train", tables)
    np.array([3, 0, 3], np.uint32).tofile(folder / "global_indices.npy")
    return folder


IN_RAW = {"format": "raw", "dtype": "uint16"}
IN_NPY = {"format": "npy", "dtype": "uint16"}
TWO = ["olmo.npy", "numpy.npy"]
CHUNKS, ORDERED = {"window": 12, "order": "olmo"}, {"window": 9, "order": "megatron"}
SOURCES = {
    "documents": (["all"], {}),
    "documents of files": (["second.idx", "first.bin"], {}),
    "documents of sequences": (["split"], {"documents": True}),
    "windows": (["raw.bin"], IN_RAW | {"window": 9}),
    "windows over files": (TWO, IN_NPY | {"window": 21}),
    "chunks": (TWO, IN_NPY | CHUNKS),
    "chunks, shuffled": (["raw.bin"], IN_RAW | CHUNKS | {"seed": 5}),
    "chunks, stored": (["raw.bin"], IN_RAW | CHUNKS | {"index": "global_indices.npy"}),
    "samples": (["wide"], ORDERED | {"seed": 1234, "num_samples": 35}),
    "samples, stored": (["all"], ORDERED | {"index": "cache-GPTDataset-train"}),
}


def make(folder, kind):
    names, options = SOURCES[kind]
    if "index" in options:
        options = options | {"index": folder / options["index"]}
    return TokenSource([folder / name for name in names], **options)


def as_lists(source):
    return [element.tolist() for element in source]


@pytest.mark.parametrize("kind", SOURCES)
def test_sources_of_tokens_conform_and_elements_are_writable(folder, kind, tmp_path):
    source = make(folder, kind)
    assert_source_conforms(source)
    dtype = np.int32 if kind == "samples" else np.uint16
    for element in source.__getitems__(range(len(source))):
        assert (element.dtype, element.ndim) == (dtype, 1)
        assert element.flags.writeable and element.flags.owndata
    lengths = [len(element) for element in source]
    assert list(getattr(source, "lengths", lengths)) == lengths
    window = SOURCES[kind][1].get("window")
    assert (source.element_spec.shape, source.element_spec.dtype) == ((window,), dtype)
    assert repr(make(shutil.copytree(folder, tmp_path / "moved"), kind)) == repr(source)
    assert len({repr(make(folder, other)) for other in SOURCES}) == len(SOURCES)


def test_elements_of_every_kind(folder, tmp_path):
    lists = [document.tolist() for document in DOCUMENTS]
    assert as_lists(make(folder, "documents")) == lists
    assert as_lists(make(folder, "documents of files")) == lists[7:] + lists[:7]
    ends = [0, 2, 2, 9, 20]
    joined = [[*chain.from_iterable(lists[start:end])] for start, end in pairwise(ends)]
    assert as_lists(make(folder, "documents of sequences")) == joined
    for ends in ([2, 2, 3], [0, 0, 3], [1, 1, 3]):  # as many documents as sequences, some empty
        few = TokenSource(write_megatron(tmp_path / "few", lists[:3], document_ends=ends))
        assert as_lists(few) == [
            [*chain.from_iterable(lists[start:end])] for start, end in pairwise([0, *ends])
        ]
    few = write_megatron(tmp_path / "few", lists[:3], document_ends=[0, 2, 3])
    message = "damaged at byte 78: one bit of the list of documents has flipped: document 1 begins"
    assert_raises(DamagedFileError, message, TokenSource, few)
    tokens = TOKENS.tolist()
    windows = [tokens[start : start + 9] for start in range(0, len(tokens) - 8, 8)]
    assert as_lists(make(folder, "windows")) == windows
    for names in (["all"], ["first", "second"]):  # from wherever documents are
        assert as_lists(TokenSource([folder / name for name in names], window=9)) == windows
    assert as_lists(make(folder, "windows over files")) == [
        tokens[start : start + 21] for start in range(0, len(tokens) - 20, 20)
    ]
    chunks = [
        part[i : i + 12]
        for part in (tokens[:50], tokens[50:])
        for i in range(0, len(part) - 11, 12)
    ]
    assert as_lists(make(folder, "chunks")) == chunks
    chunks = [tokens[i : i + 12] for i in range(0, len(tokens) - 11, 12)]
    # made by OLMo 0.6.0: of 8 elements, with the seed 3 in epoch 2
    order = [1, 4, 2, 3, 7, 5, 6, 0]
    assert as_lists(make(folder, "chunks, shuffled")) == [chunks[i] for i in order]
    assert as_lists(make(folder, "chunks, stored")) == [chunks[3], chunks[0], chunks[3]]
    tables, _ = megatron_tables(LENGTHS, range(20), 8, seed=3, num_samples=30)
    assert as_lists(make(folder, "samples, stored")) == megatron_samples(lists, tables, 8)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_windows_are_those_of_the_tokens_one_after_the_other(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("model")
    lengths = data.draw(
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4)
    )
    window, dtype = (
        data.draw(st.integers(2, 12)),
        data.draw(st.sampled_from(["uint8", "uint16", "int32"])),
    )
    tokens = iter(range(1000))
    files = [
        [[next(tokens) % 251 for _ in range(length)] for length in lengths_of_one]
        for lengths_of_one in lengths
    ]
    flat = [[*chain.from_iterable(documents)] for documents in files]
    whole = [*chain.from_iterable(flat)]
    paths = {
        "megatron": [
            write_megatron(folder / f"{i}", documents, dtype) for i, documents in enumerate(files)
        ],
        "npy": [write_npy(folder / f"{i}.npy", part, dtype) for i, part in enumerate(flat)],
        "raw": [write_raw(folder / f"{i}.raw", part, dtype) for i, part in enumerate(flat) if part],
    }
    expected = [
        whole[start : start + window] for start in range(0, len(whole) - window + 1, window - 1)
    ]
    chunks = [
        part[start : start + window]
        for part in flat
        for start in range(0, len(part) - window + 1, window)
    ]
    for format, names in paths.items():
        given_dtype = dtype if format == "raw" else None
        for order, elements in ((None, expected), ("olmo", chunks)):
            if elements:
                source = TokenSource(names, format, dtype=given_dtype, window=window, order=order)
                keys = data.draw(st.lists(st.integers(0, len(elements) - 1), max_size=9))
                assert as_lists(source) == elements
                assert [element.tolist() for element in source.__getitems__(keys)] == [
                    elements[key] for key in keys
                ]
            elif names:
                message = f"at most the number of tokens, got {window}, and there are"
                options = {"dtype": given_dtype, "window": window, "order": order}
                assert_raises(ValueError, message, TokenSource, names, format, **options)
    assert as_lists(TokenSource(paths["megatron"])) == [*chain.from_iterable(files)]


# Made by GPTDataset of Megatron Core 0.11.0 and 0.16.1, which agree: of these documents, with the
# seed 1234 and samples of 8 + 1.
SPLIT = {"num_samples": 30, "split": "70,20,10"}
VECTORS = [
    ({}, 12, [29, 30, 19, 20, 21, 22, 23, 24, 25], "a8f7b550debcf73b"),
    ({"num_samples": 25}, 25, [76, 77, 78, 79, 80, 81, 82, 19, 20], "7b46f93f85e26a3c"),
    ({"num_samples": 35}, 38, [68, 69, 94, 95, 96, 97, 98, 99, 100], "9807062474e17590"),
    (SPLIT, 34, [12, 13, 14, 55, 56, 57, 58, 59, 48], "0f1639e089013991"),
    (SPLIT | {"part": "valid"}, 32, [89, 90, 91, 92, 93, 83, 84, 85, 74], "17102e9c3e627d55"),
]


@pytest.mark.parametrize(("options", "length", "first", "digest"), VECTORS)
def test_samples_are_those_of_megatron_core(folder, options, length, first, digest):
    source = TokenSource(folder / "all", window=9, order="megatron", seed=1234, **options)
    samples = np.concatenate(source.__getitems__(range(length))).astype("<i8")
    assert (len(source), source[0].tolist()) == (length, first)
    assert hashlib.sha256(samples.tobytes()).hexdigest()[:16] == digest


def test_samples_are_those_that_a_loop_finds(tmp_path):
    rng = np.random.default_rng(0)
    separate = []
    for trial in range(40):
        lengths = (
            rng.integers(0, 12, rng.integers(1, 15)) * rng.integers(0, 2, 1 + trial % 2).max()
        ).tolist()
        sequences = [rng.integers(0, 60_000, length).tolist() for length in [*lengths, 7]]
        num_inputs, seed = int(rng.integers(1, 20)), int(rng.integers(0, 2**32))
        num_samples = int(rng.integers(1, 5 * sum(map(len, sequences)) // num_inputs + 3))
        lengths = [len(sequence) for sequence in sequences]
        tables, is_separate = megatron_tables(
            lengths, range(len(lengths)), num_inputs, seed, num_samples
        )
        separate.append(is_separate)
        path = write_megatron(tmp_path / f"{trial}", sequences)
        arguments = {"window": num_inputs + 1, "order": "megatron"}
        expected = megatron_samples(sequences, tables, num_inputs)
        source = TokenSource(path, seed=seed, num_samples=num_samples, **arguments)
        assert len(source) >= num_samples and as_lists(source) == expected
        index = save_tables(tmp_path / f"{trial}-train", tables)
        assert as_lists(TokenSource(path, index=index, **arguments)) == expected
    assert 5 < sum(separate) < 35


def test_headers_of_llm_c_and_numpy_and_olmos_files_without_one(tmp_path):
    tokens = list(range(100, 140))
    expected = [tokens[0:20], tokens[19:39]]
    for dtype, header in (
        ("uint16", {}),
        ("uint32", {"magic": 20240801, "version": 7, "dtype": "uint32"}),
    ):
        source = TokenSource(write_llm_c(tmp_path / "data.bin", tokens, **header), "raw", window=20)
        assert as_lists(source) == expected and source[0].dtype == dtype
    for dtype in ("uint16", "uint32", ">i4", "int64"):
        with_header, without = (
            write_npy(tmp_path / "a.npy", tokens, dtype),
            write_raw(tmp_path / "b.npy", tokens, dtype),
        )
        for path, given_dtype in ((with_header, None), (with_header, dtype), (without, dtype)):
            source = TokenSource(path, "npy", dtype=given_dtype, window=20)
            assert as_lists(source) == expected and source[0].dtype == dtype
    two = [write_npy(tmp_path / "2.npy", tokens), write_npy(tmp_path / "4.npy", tokens, "uint32")]
    for paths, format, dtype, message in [
        (without, "npy", None, "b.npy has no header of NumPy's. OLMo's files have none"),
        (without, "raw", None, "nanoGPT's train.bin and val.bin have numpy.uint16"),
        (two, "npy", None, "of one dtype: .*2.npy has uint16 and .*4.npy has uint32"),
        (two[0], "npy", "int16", "that of the files, uint16, as .*2.npy"),
    ]:
        assert_raises(ValueError, message, TokenSource, paths, format, dtype=dtype, window=2)


def test_patterns_prefixes_and_pairs(folder):
    for paths in (
        folder / "first",
        str(folder / "fir*"),
        [folder / "first.idx"],
        folder / "f*.bin",
    ):
        assert as_lists(TokenSource(paths)) == [document.tolist() for document in DOCUMENTS[:7]]
    assert TokenSource([folder / "{second,first}"]).paths == [
        str(folder / f"{name}.bin") for name in ("second", "first")
    ]
    assert len(TokenSource([folder / "first", folder / "first"])) == 14
    pair = [folder / "first.bin", folder / "first.idx"]
    assert_raises(ValueError, "name a pair of files once: .*first.idx", TokenSource, pair)
    assert_raises(FileNotFoundError, r"there is no file '.*none.bin'", TokenSource, folder / "none")
    with pytest.raises(FileNotFoundError, match=r"raw\.idx") as caught:
        TokenSource(folder / "raw.bin")
    assert "Tokens without an index are read with format='raw'" in caught.value.__notes__[0]


def changed_bytes(path, place, value):
    data = bytearray(Path(path).read_bytes())
    data[place : place + len(value)] = value
    Path(path).write_bytes(data)


def cut(path, num_bytes):
    os.truncate(path, Path(path).stat().st_size - num_bytes)


def put(place, value):
    return lambda path: changed_bytes(path, place, value)


def resized(change):
    return lambda path: Path(path).write_bytes(change(Path(path).read_bytes()))


HEADER, POINTERS, ENDS = 34, 34 + 4 * 20, 34 + 12 * 20
SAMPLES = {"window": 9, "order": "megatron", "seed": 1}
FIFTH = POINTERS + 40
# The file, its damage, options, the byte and the text of the error.
OF_MEGATRON = [
    ("idx", resized(lambda _: b""), {}, 0, "does not begin as an index of Megatron's"),
    ("idx", put(0, b"TNTIDX\0\0"), {}, 0, "Name the prefix of a pair"),
    ("idx", resized(lambda data: data[:20]), {}, 20, "it ends within its header"),
    ("idx", put(9, b"\2"), {}, 9, "it has the version 2"),
    ("idx", put(17, b"\t"), {}, 17, r"type 9, and known are 1 \(uint8\)"),
    ("idx", resized(lambda data: data[:-3]), {}, 439, "says that it has 442 bytes, but it has 439"),
    ("idx", put(18, b"\xff" * 7), {}, 442, "but it has 442"),
    ("idx", resized(lambda data: data + bytes(20)), {}, 442, "a mode for each sequence"),
    ("idx", put(ENDS + 20 * 8, b"\x13"), {}, ENDS, "are not those of its 20 sequences"),
    ("bin", resized(lambda data: data[:-1]), {}, POINTERS + 152, "7 tokens from byte 192 .* 205"),
    ("idx", put(FIFTH, b"\xff" * 8), {}, FIFTH, "sequence 5 has 3 tokens from byte -1"),
    ("idx", put(HEADER + 20, b"\xff" * 4), {}, FIFTH, "sequence 5 has -1 tokens"),
    ("idx", put(HEADER + 20, b"\xff\0\0\0"), {}, FIFTH, "sequence 5 has 255 tokens"),
    ("bin", resized(lambda data: data + b"ab"), {"window": 9}, POINTERS, "0 to 206 of .* has 208"),
    ("idx", put(HEADER + 20, b"\xff" * 4), SAMPLES, FIFTH, "5 has -1"),
]


@pytest.mark.parametrize(("suffix", "damage", "options", "offset", "message"), OF_MEGATRON)
def test_damaged_pairs_are_an_error_that_names_file_and_byte(
    tmp_path, suffix, damage, options, offset, message
):
    prefix = write_megatron(tmp_path / "x", DOCUMENTS)
    damage(f"{prefix}.{suffix}")

    def read():
        source = TokenSource(prefix, **options)
        good = source.__getitems__([0, 1, 2, 3])
        assert as_lists(good) == [document.tolist() for document in DOCUMENTS[:4]]
        assert_raises(KeyRangeError, None, source.__getitems__, [0, 99, 5])  # the first that fails
        source.__getitems__([0, 5, 99])

    assert_raises(DamagedFileError, rf"x.idx is damaged at byte {offset}: .*{message}", read)


def test_an_index_in_another_order_is_read_by_documents(tmp_path):
    prefix = write_megatron(tmp_path / "x", DOCUMENTS)
    index = Path(f"{prefix}.idx").read_bytes()
    for order in ([*range(3, 20)], [*range(10), *range(12, 20)], [0, *range(18, 0, -1), 19]):
        header = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, len(order), len(order) + 1)
        lengths, places = (
            np.frombuffer(index, "<i4", 20, HEADER)[order],
            np.frombuffer(index, "<i8", 20, POINTERS)[order],
        )
        numbers = np.arange(len(order) + 1, dtype="<i8")
        Path(f"{prefix}.idx").write_bytes(
            header + lengths.tobytes() + places.tobytes() + numbers.tobytes()
        )
        assert as_lists(TokenSource(prefix)) == [DOCUMENTS[i].tolist() for i in order]
        samples = TokenSource(prefix, window=9, order="megatron", seed=2)
        tables, _ = megatron_tables(lengths.tolist(), range(len(order)), 8, seed=2)
        assert as_lists(samples) == megatron_samples(
            [DOCUMENTS[i].tolist() for i in order], tables, 8
        )
        message = r"x.idx is damaged at byte \d+: .*can be read by documents"
        for options in ({}, {"order": "olmo"}):
            assert_raises(DamagedFileError, message, TokenSource, prefix, window=9, **options)


@pytest.mark.parametrize(
    "options", [{}, {"window": 4}, {"window": 4, "order": "megatron", "seed": 1}], ids=str
)
@pytest.mark.parametrize(
    "is_long", [False, True], ids=["checked as a whole", "checked in stretches"]
)
def test_a_flipped_bit_of_an_index_changes_no_data(tmp_path, monkeypatch, options, is_long):
    lengths, dtype = [3, 8, 16, 8, 0, 16, 1, 20], "int16"
    if is_long:
        lengths = lengths * 8
        monkeypatch.setattr(megatron_index, "_MAX_CHECKED", 32)
        monkeypatch.setattr(megatron_index, "_NUM_STRETCHES", 3)
        monkeypatch.setattr(megatron_index, "_STRETCH", 8)
    tokens = np.arange(sum(lengths), dtype=dtype)
    prefix = write_megatron(tmp_path / "x", np.split(tokens, np.cumsum(lengths)[:-1]), dtype)
    index, expected = Path(f"{prefix}.idx"), as_lists(TokenSource(prefix, **options))
    good, found = index.read_bytes(), set()
    for bit in range(8 * 17, 8 * len(good), 61 if is_long else 5):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        index.write_bytes(flipped)
        try:
            assert as_lists(TokenSource(prefix, **options)) == expected, (bit // 8, bit % 8)
            found.add("same")
        except DamagedFileError as error:
            assert str(error).startswith(f"{index} is damaged at byte")
            found.add("damaged")
    assert found == {"same", "damaged"}


def test_an_order_of_no_tokens_is_refused(tmp_path):
    message = "^window must be at most the number of tokens, got 9, and there are 0 tokens"
    empty = write_megatron(tmp_path / "empty", [[], []])
    for prefix in (empty, write_megatron(tmp_path / "none", [])):
        for options in (
            {},
            {"order": "olmo", "seed": 1},
            {"order": "megatron", "seed": 1},
            {"order": "megatron", "seed": 1, "num_samples": 5},
        ):
            assert_raises(ValueError, message, TokenSource, prefix, window=9, **options)
    part = {"order": "megatron", "seed": 1, "num_samples": 5, "split": "1,1"}
    halves = write_megatron(tmp_path / "halves", [[], [1, 2, 3]])
    assert_raises(ValueError, message, TokenSource, halves, window=9, **part)
    for format, path in (
        ("npy", write_npy(tmp_path / "x.npy", [])),
        ("raw", write_llm_c(tmp_path / "x.bin", [])),
    ):
        for options in ({}, {"order": "olmo"}, {"order": "olmo", "seed": 3}):
            assert_raises(ValueError, message, TokenSource, path, format, window=9, **options)
    order = write_npy(tmp_path / "order.npy", [], "uint32")
    whole = write_npy(tmp_path / "whole.npy", TOKENS)
    message = "^index must have at least one element, and .*order.npy has none"
    options = {"window": 9, "order": "olmo", "index": order}
    assert_raises(ValueError, message, TokenSource, whole, "npy", **options)
    tables = np.zeros(0, np.int32), np.zeros((1, 2), np.int32), np.zeros(0, np.uint32)
    options = {"window": 2, "order": "megatron", "index": save_tables(tmp_path / "stored", tables)}
    message = "^index must have at least one element, and .*stored-shuffle_index.npy has none"
    assert_raises(ValueError, message, TokenSource, halves, **options)


RAW, NPY = {"format": "raw", "dtype": "u2"}, {"format": "npy", "dtype": "u2"}
NO_HEADER = "the header of the NumPy file cannot be read"
LLM_C, NEGATIVE = struct.pack("<iii", 20240520, 1, 9), struct.pack("<iii", 20240520, 1, -9)
OF_TOKENS = [
    (b"", RAW, 0, "the file is empty"),
    (b"", NPY, 0, "the file is empty"),
    (bytes(11), RAW, 10, "it ends within a value of uint16"),
    (bytes(11), NPY | {"dtype": "u4"}, 8, "it ends within a value of uint32"),
    (b"\x93NUMPY\1\0v\0", RAW, 0, "Say format='npy'"),
    (b"\x93NUMPY\1\0v\0", NPY, 0, NO_HEADER),
    (b"\x93NUMPY\3\0v\0", NPY, 0, NO_HEADER),
    (LLM_C + bytes(1012 + 16), {"format": "raw"}, 1040, "has 9 tokens, so 1042 bytes"),
    (NEGATIVE + bytes(1012), {"format": "raw"}, 1006, "has -9 tokens"),
]


@pytest.mark.parametrize(("content", "options", "offset", "message"), OF_TOKENS)
def test_damaged_tokens_are_named_with_the_byte(tmp_path, content, options, offset, message):
    (tmp_path / "x").write_bytes(content)
    text = rf"x is damaged at byte {offset}: .*{message}"
    assert_raises(DamagedFileError, text, TokenSource, tmp_path / "x", window=3, **options)


def test_foreign_arrays_and_files_of_wrong_sizes_are_refused(tmp_path):
    for array in (np.zeros((3, 4), np.uint16), np.uint16(3)):
        np.save(tmp_path / "x.npy", array)
        wanted = (
            r"x.npy is damaged at byte 0: it has an array of .* of integers with one axis is"
            r" needed. Save array.ravel\(\)"
        )
        assert_raises(DamagedFileError, wanted, TokenSource, tmp_path / "x.npy", "npy", window=2)
    for array in (np.zeros(5, np.float32), np.zeros(2, bool)):
        np.save(tmp_path / "x.npy", array)
        wanted = f"^tokens must be integers, .* got {array.dtype} in .*x.npy"
        assert_raises(ValueError, wanted, TokenSource, tmp_path / "x.npy", "npy", window=2)
    prefix = write_megatron(tmp_path / "x", DOCUMENTS)
    for code, name in ((6, "float64"), (7, "float32")):
        changed_bytes(f"{prefix}.idx", 17, bytes([code]))
        wanted = f"^paths: tokens must be integers, got {name} in .*x.bin, as .*x.idx says"
        assert_raises(ValueError, wanted, TokenSource, prefix)
    path = write_npy(tmp_path / "y.npy", TOKENS)
    cut(path, 2)
    wanted = "y.npy is damaged at byte 332: .*334 bytes, but it has 332"
    assert_raises(DamagedFileError, wanted, TokenSource, path, "npy", window=2)


DOCUMENTS_OR_TOKENS = r"sample [23] has (the documents from 50 to \d+ of 60|\d+ tokens, not 9)"


@pytest.mark.parametrize(
    ("number", "rows", "value", "file", "message"),
    [
        (2, 4, 99, "shuffle", "element 4 is sample 99, but there are 38"),
        (1, 3, (50, 0), "sample", DOCUMENTS_OR_TOKENS),
        (1, 3, (-1, 0), "sample", "has the documents from .* of 60"),
        (1, 3, (0, -5), "sample", "sample [23] has "),
        (0, slice(None), 20, "document", "document 20 is named, but the data set has 20"),
        (0, slice(None), 1, "sample", r"sample \d+ has -?\d+ tokens, not 9"),
    ],
)
def test_a_stored_order_that_is_damaged_is_noticed(
    folder, tmp_path, number, rows, value, file, message
):
    tables, _ = megatron_tables(LENGTHS, range(20), 8, seed=3, num_samples=35)
    tables[number][rows] = value
    index = save_tables(tmp_path / "t", tables)
    source = TokenSource(folder / "all", window=9, order="megatron", index=index)
    text = rf"t-{file}_index.npy is damaged at byte \d+: .*{message}"
    for read in (as_lists, lambda source: source.__getitems__(range(len(source)))):
        assert_raises(DamagedFileError, text, read, source)


def test_a_stored_order_of_something_else_is_noticed(folder, tmp_path):
    def samples(index, window=9):
        return TokenSource(folder / "all", window=window, order="megatron", index=index)

    other = samples(folder / "cache-GPTDataset-train", window=8)
    message = "9 tokens, not 8. Name the index that was made of"
    assert_raises(DamagedFileError, message, as_lists, other)
    assert_raises(FileNotFoundError, "none-document_index.npy", samples, tmp_path / "none")
    tables, _ = megatron_tables(LENGTHS, range(20), 8, seed=3, num_samples=35)
    prefix = save_tables(tmp_path / "t", tables)
    np.save(f"{prefix}-shuffle_index.npy", tables[2][:-1])
    message = "an order of 37 samples, but .*t-sample_index.npy has 38"
    assert_raises(DamagedFileError, message, samples, f"{prefix}-sample_index.npy")
    np.save(f"{prefix}-sample_index.npy", tables[1].ravel())
    message = r"integers of shape \(n, 2\) in C order is needed"
    assert_raises(DamagedFileError, message, samples, prefix)
    path = f"{prefix}-document_index.npy"
    np.array([3, 99], np.uint32).tofile(path)
    message = f"{path} is damaged at byte 0: it does not begin as a NumPy file"
    assert_raises(DamagedFileError, message, samples, prefix)
    chunks = TokenSource(folder / "all", window=9, order="olmo", index=path)
    message = f"{path} is damaged at byte 4: element 1 is window 99, but the files have 11"
    assert_raises(DamagedFileError, message, as_lists, chunks)


def test_a_file_of_the_same_size_that_changed_is_noticed(tmp_path):
    path = write_raw(tmp_path / "x.bin", TOKENS)
    source = TokenSource(path, "raw", dtype=np.uint16, window=9)
    assert source[0].tolist() == list(range(9))
    changed_bytes(path, 0, b"ab")
    message = "x.bin has changed since this source was made"
    assert_raises(ChangedFileError, message, source.__getitem__, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_opens_files_of_its_own(folder):
    command = [sys.executable, FORKED, str(folder / "all")]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert program.stdout == "1\n"


def test_batches_by_lengths(folder):
    documents = grain.MapDataset.source(make(folder, "documents")).shuffle(seed=0)
    found = documents.bucket_batch(None, [5, 10], batch_sizes=[2, 2], with_lengths=True)
    pairs = [pair for i in range(len(found)) for pair in zip(*found[i], strict=True)]
    rows = [row[:length].tolist() for row, length in pairs if length]
    assert sorted(rows) == sorted(document.tolist() for document in DOCUMENTS if len(document))
    sequences = make(folder, "documents of sequences")
    message = "documents of several sequences, and tells no lengths"
    assert_raises(AttributeError, message, lambda: sequences.lengths)


def test_an_index_of_ten_to_the_eight_documents_is_not_loaded(tmp_path):
    num, step = 10**8, 7
    # a file with holes: of a few documents the entries are written
    with (tmp_path / "x.idx").open("wb") as index:
        index.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, num, num + 1))
        index.truncate(34 + 12 * num + 8 * (num + 1))
        index.seek(34 + 20 * num)
        index.write(struct.pack("<q", num))
        places = [0, 12_345_678, num // 2, num - 1]
        for place in places:
            index.seek(34 + 4 * place)
            index.write(struct.pack("<i", step))
            index.seek(34 + 4 * num + 8 * place)
            index.write(struct.pack("<q", 2 * step * place))
    with (tmp_path / "x.bin").open("wb") as data:
        data.truncate(2 * step * num)
        for place in places:
            data.seek(2 * step * place)
            data.write(struct.pack("<H", place % 65_521))
    tracemalloc.start()
    try:
        source = TokenSource(tmp_path / "x")
        assert [int(document[0]) for document in source.__getitems__(places)] == [
            place % 65_521 for place in places
        ]
        tokens = TokenSource(tmp_path / "x.bin", "raw", dtype="uint16", window=step + 1)
        windows = grain.MapDataset.source(tokens).shuffle(seed=0)
        assert (len(source), len(windows), windows[5].shape) == (num, num - 1, (step + 1,))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert source.lengths[places].tolist() == [step] * len(places)
