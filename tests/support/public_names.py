"""The public names, and all their spellings."""

import gristmill

# That these are there, the tests of the reference say, which have their parameters; some are at
# home elsewhere.
ELSEWHERE = {
    "FlatMapTransform",
    "MapWithIndexTransform",
    "assert_equal_output_after_checkpoint",
    "get_execution_summary",
}
ELSEWHERE.add("HuggingFaceIterDataset")
EXPERIMENTAL = " ".join(sorted({*gristmill.experimental.__all__} - ELSEWHERE))
TRANSFORMS = [
    "{}Transform",
    "python.{}Transform",
    "experimental.{}Transform",
    "python.experimental.{}Transform",
]
HERE, IN_PYTHON, IN_EXPERIMENTAL = "{}", "python.{}", "python.experimental.{}"
OF_ORBAX = ["PyGrain{}", "Grain{}", "python.PyGrain{}", "python.Grain{}"]
# Places of names, and the other spellings of them (all relative to gristmill).
FAMILIES = [
    (
        (
            "DataLoader load ReadOptions Record RecordMetadata config MapDataset IterDataset"
            " DatasetIterator"
        ),
        "",
        [IN_PYTHON],
    ),
    ("IndexSampler SequentialSampler Sampler", "samplers.", [IN_PYTHON, HERE]),
    ("RandomAccessDataSource ArrayRecordDataSource RangeDataSource", "sources.", [IN_PYTHON, HERE]),
    ("BagDataSource HuggingFaceSource ImageFolderSource JsonlSource MDSSource", "sources.", [HERE]),
    ("ParquetSource TarSource TokenSource cached", "sources.", [HERE]),
    ("ChangedFileError DamagedFileError", "sources.", []),
    ("Map RandomMap Filter", "transforms.", TRANSFORMS[:2]),
    ("MapWithIndex", "transforms.", TRANSFORMS),
    ("Tolerate", "transforms.", []),
    ("FaultBudgetError WriteReport read verify_files write", "", []),
    ("Transformation Transformations DatasetSelectionMap", "transforms.", [IN_PYTHON, HERE]),
    ("ShardOptions NoSharding ShardByJaxProcess", "sharding.", [IN_PYTHON, HERE]),
    (
        "INDEX RECORD_KEY DATASET_INDEX EPOCH SEED RECORD META_FEATURES",
        "constants.",
        [IN_PYTHON, HERE],
    ),
    ("CheckpointHandler CheckpointSave CheckpointRestore", "checkpoint.", OF_ORBAX),
    ("agree_jax agree_torch merge_states", "checkpoint.", []),
    ("AtMost Exact Infinite Unknown", "lengths.", []),
    ("MapOperation RandomMapOperation FilterOperation BatchOperation Operation", "python.", [HERE]),
    ("diagnose observe verify visualize start_telemetry stop_telemetry", "diagnostics.", [HERE]),
    (
        (
            "BudgetUse Check Diagnosis ExecutionSummary Report ShuffleQuality Snapshot StageSummary"
            " View"
        ),
        "diagnostics.",
        [],
    ),
    ("shuffle_quality", "diagnostics.", []),
    ("get_execution_summary", "diagnostics.", ["experimental.{}", IN_EXPERIMENTAL]),
    (
        "iter_dataset iterator map_dataset sampler source transform",
        "testing.assert_{}_conforms",
        [],
    ),
    ("assert_deterministic", "testing.", []),
    ("assert_equal_output_after_checkpoint", "testing.", ["experimental.{}", IN_EXPERIMENTAL]),
    ("HuggingFaceIterDataset", "experimental.", [IN_EXPERIMENTAL, HERE]),
    (EXPERIMENTAL, "experimental.", [IN_EXPERIMENTAL]),
]
ALIASES = {
    "DataLoaderIterator": ["python.PyGrainDatasetIterator", "PyGrainDatasetIterator"],
    "MultiprocessingOptions": [
        "multiprocessing.MultiprocessingOptions",
        "python.MultiprocessingOptions",
    ],
    "multiprocessing.SharedMemoryArray": ["python.SharedMemoryArray", "SharedMemoryArray"],
    "multiprocessing.SharedMemoryArrayMetadata": [],
    "sources.SharedMemoryDataSource": [
        "python.InMemoryDataSource",
        "InMemoryDataSource",
        "sources.InMemoryDataSource",
    ],
    "transforms.TfRandomMap": [],
    "transforms.FlatMap": ["experimental.FlatMapTransform", "python.experimental.FlatMapTransform"],
    "transforms.Batch": ["python.Batch", "Batch", "python.BatchTransform", "BatchTransform"],
    "samplers.IterableSampler": ["IterableSampler"],
    "sharding.even_split": [],
    "checkpoint.StateMismatchError": [],
    "dataset_length": ["lengths.dataset_length"],
    "global_batch": [],
    **{
        (home if "{}" in home else home + "{}").format(name): [
            alias.format(name) for alias in aliases
        ]
        for names, home, aliases in FAMILIES
        for name in names.split()
    },
}
