"""The example with parts of its own: what it prints, what it reads, and that its checks notice a broken part."""

import re
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises
from test_examples import EXAMPLES, run_example

import gristmill as grain

WORDS = [b"fir\n", b"\n", b"a longer line, which is as long as several frames are taken together\n", b"oak elm\n"] * 20


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import custom_parts

    return custom_parts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_bytes(b"".join(WORDS))
    return path


def test_it_resumes_in_the_middle(file):
    output = run_example("custom_parts.py", "--file", file)
    assert output.startswith(f"Lines('words.txt', 80 lines, {file.stat().st_size} bytes): source, sampler and stage conform\n")
    done, of, next_index = map(int, re.findall(r'after (\d+) of (\d+) .*"next_index": (\d+)', output)[0])
    assert done == of // 2 and 0 < next_index < 160
    assert output.endswith("resumed in the middle: bit-identical\n")


def test_frames_and_a_loader_read_all_bytes_in_the_order_of_the_sampler(parts, file):
    in_order = sorted(WORDS, key=len)
    text = b"".join(batch.astype(np.uint8).tobytes() for batch in parts.make_pipeline(file))
    assert len(text) == 2 * len(b"".join(WORDS)) // 64 * 64
    assert text == b"".join(in_order * 2)[: len(text)]

    lines = parts.Lines(file)
    shard = grain.sharding.NoSharding()
    loader = grain.DataLoader(data_source=lines, sampler=parts.ShortFirst(lines.lengths), shard_options=shard)
    assert [line.tobytes() for line in loader] == in_order


def test_a_careless_iterator_is_noticed(parts, file, monkeypatch):
    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self._buffer, self._delivered = [], 0

    monkeypatch.setattr(parts.FrameIterator, "set_state", set_state)
    pipeline = parts.make_pipeline(file)
    assert_raises(AssertionError, r"broken law: .*Found: ", grain.testing.assert_iter_dataset_conforms, pipeline)
