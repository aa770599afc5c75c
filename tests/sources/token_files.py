"""Files of tokens, written as their formats say, and Megatron's order of samples, computed step by
step.
"""

import struct
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(prefix, sequences, dtype="uint16", document_ends=None):
    """A pair of files; a document is a sequence, unless it is said after how many sequences each
    ends.
    """
    lengths = [len(sequence) for sequence in sequences]
    places = np.cumsum([0, *lengths])[:-1] * np.dtype(dtype).itemsize
    documents = [0, *(range(1, len(lengths) + 1) if document_ends is None else document_ends)]
    Path(f"{prefix}.bin").write_bytes(
        b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences)
    )
    header = struct.pack("<9sQBQQ", b"MMIDIDX", 1, CODES[dtype], len(lengths), len(documents))
    arrays = np.array(lengths, "<i4"), places.astype("<i8"), np.array(documents, "<i8")
    Path(f"{prefix}.idx").write_bytes(header + b"".join(array.tobytes() for array in arrays))
    return str(prefix)


def write_llm_c(path, tokens, magic=20240520, version=1, dtype="uint16"):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    Path(path).write_bytes(header.tobytes() + np.array(tokens, dtype).tobytes())
    return str(path)


def write_raw(path, tokens, dtype="uint16"):
    np.array(tokens, dtype).tofile(path)
    return str(path)


def write_npy(path, tokens, dtype="uint16"):
    np.save(path, np.array(tokens, dtype))
    return str(path)


def megatron_tables(lengths, documents, num_inputs, seed, num_samples=None):
    """The three tables of ``GPTDataset`` of Megatron Core, by loops over epochs, documents and
    tokens.

    Returns:
        The tables, and whether the last epoch was shuffled by itself.
    """
    num_tokens = sum(lengths[document] for document in documents)
    num_epochs = 1
    while num_samples is not None and num_epochs * num_tokens < num_samples * num_inputs + 1:
        num_epochs += 1
    before_last = ((num_epochs - 1) * num_tokens - 1) // num_inputs
    total = (num_epochs * num_tokens - 1) // num_inputs
    is_separate = num_epochs > 1 and num_samples - before_last < int(
        0.8 * ((num_tokens - 1) // num_inputs)
    )

    state = np.random.RandomState(seed)
    groups = [num_epochs - 1, 1] if is_separate else [num_epochs]
    document_index = []
    for group in groups:
        part = np.array(list(documents) * group, np.int32)
        state.shuffle(part)
        document_index += part.tolist()
    stream = [
        (place, offset)
        for place, document in enumerate(document_index)
        for offset in range(lengths[document])
    ]
    sample_index = [(0, 0), *(stream[sample * num_inputs] for sample in range(1, total + 1))]
    shuffle_index = []
    for start, stop in [(0, before_last), (before_last, total)] if is_separate else [(0, total)]:
        part = np.arange(start, stop, dtype=np.uint32)
        state.shuffle(part)
        shuffle_index += part.tolist()
    tables = (
        np.array(document_index, np.int32),
        np.array(sample_index, np.int32),
        np.array(shuffle_index, np.uint32),
    )
    return tables, is_separate


def megatron_samples(sequences, tables, num_inputs):
    """The samples in their order, as lists of tokens."""
    document_index, sample_index, shuffle_index = (table.tolist() for table in tables)
    samples = []
    for sample in shuffle_index:
        place, offset = sample_index[sample]
        tokens = []
        while len(tokens) < num_inputs + 1:
            tokens += list(sequences[document_index[place]][offset:])
            place, offset = place + 1, 0
        samples.append(tokens[: num_inputs + 1])
    return samples


def save_tables(prefix, tables):
    for name, table in zip(("document", "sample", "shuffle"), tables, strict=True):
        np.save(f"{prefix}-{name}_index.npy", table)
    return str(prefix)
